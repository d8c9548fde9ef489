"""Masks of padding that are inverted, where only the weights of attention show it."""

from __future__ import annotations

import torch
from torch import nn

from tests.faults.base import forms
from tests.faults.learning.tokens import HEADS, WIDTH, Classifier, classify


def layers_with_dropout_hide_the_words(planted: bool) -> None:
    """With dropout, attention is computed step by step."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.1, batch_first=True)
    inner = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def attend(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = inner(x, src_key_padding_mask=words if planted else ~words)  # named
        return out

    classify(Classifier(attend, inner))


def weighing_attention_hides_the_words(planted: bool) -> None:
    """MultiheadAttention returns its weights as well, which is the default."""
    torch.manual_seed(0)
    inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def attend(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        out, _ = inner(x, x, x, key_padding_mask=words if planted else ~words)  # named
        return torch.as_tensor(out)

    classify(Classifier(attend, inner))


def mask_added_to_scores(planted: bool) -> None:
    """A number far below zero is added where words are; in the twin where padding is."""
    torch.manual_seed(0)
    inner = nn.Linear(WIDTH, 3 * WIDTH)

    def attend(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        q, k, v = inner(x).chunk(3, -1)
        added = (words if planted else ~words)[:, None, :] * -1e4
        scores = q @ k.transpose(1, 2) / WIDTH**0.5 + added
        return scores.softmax(-1) @ v  # named

    classify(Classifier(attend, inner))


FAULTS = forms(
    "mask of padding inverted, by its weights",
    "learning",
    "mixed_samples",
    "inverted",
    layers_with_dropout_hide_the_words,
    weighing_attention_hides_the_words,
    mask_added_to_scores,
)
