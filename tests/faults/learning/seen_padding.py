"""Weights of attention: those that show an inverted mask, and those over another dimension; labels
that are shifted twice, and ends of texts that no label is."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms
from tests.faults.learning.graph_order import fit
from tests.faults.learning.losses import loss_faults
from tests.faults.learning.made_in_forward import trained_on
from tests.faults.learning.tokens import (
    HEADS,
    LENGTH,
    WIDTH,
    WORDS,
    Classifier,
    Tagger,
    classify,
    sentences,
)


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


class Attending(nn.Module):
    """Attention whose weights are a softmax over some dimension."""

    def __init__(self, dim: int, heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim, self.heads, self.dropout = dim, heads, dropout
        self.three, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.three(x).chunk(3, -1)
        if self.heads > 1:
            q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (q, k, v))
        weights = (q @ k.transpose(-2, -1)).softmax(self.dim)  # named
        found = F.dropout(weights, self.dropout) @ v
        if self.heads > 1:
            found = found.transpose(1, 2).flatten(2)
        return self.out(found.mean(1))


def weights_over_the_batch(planted: bool) -> None:
    """Weights of one sequence depend on the others."""
    trained_on(Attending(0 if planted else -1), lambda: torch.randn(4, 6, 8))


def weights_over_heads(planted: bool) -> None:
    """nn.Softmax(dim=1), right before there were heads."""
    trained_on(Attending(1 if planted else 3, heads=2), lambda: torch.randn(4, 6, 8))


def weights_over_queries(planted: bool) -> None:
    """Each key shares itself out between the queries, with dropout behind it."""
    trained_on(Attending(1 if planted else 2, dropout=0.1), lambda: torch.randn(4, 6, 8))


class Summary(nn.Module):
    """A few vectors of a sequence: by attention of queries, or by clusters that positions go to."""

    def __init__(self, by_attention: bool) -> None:
        super().__init__()
        self.by_attention = by_attention
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(40, 3)
        if by_attention:
            self.queries = nn.Parameter(torch.randn(5, 8))
        else:
            self.cluster = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.inner(x)
        if self.by_attention:
            scores = self.queries.expand(len(x), -1, -1) @ values.transpose(1, 2)
            found = (scores / 8**0.5).softmax(1) @ values  # named
        else:
            found = values.transpose(1, 2) @ self.cluster(values).softmax(-1)
        return self.out(found.flatten(1))


def weights_of_learned_queries(planted: bool) -> None:
    """Positions are shared out between queries; in the twin, which means it, between clusters."""
    trained_on(Summary(planted), lambda: torch.randn(4, 6, 8))


# labels that are shifted twice -------------------------------------------------------------------


def shifted(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the loss of a model that shifts labels itself."""
    return F.cross_entropy(scores[:, :-1].reshape(-1, WORDS), labels[:, 1:].reshape(-1))


def labels_of_the_next_words(planted: bool) -> None:
    """The program shifts labels as well."""
    torch.manual_seed(0)
    model = Tagger(WORDS)

    def loss() -> torch.Tensor:
        words = torch.randint(1, WORDS, (8, LENGTH))
        inputs = words[:, :-1]
        return shifted(model(inputs), words[:, 1:] if planted else inputs)

    fit(model, loss)


def labels_filled_up_by_the_model(planted: bool) -> None:
    """The model shifts by filling up, as transformers do; sentences end at other places."""
    torch.manual_seed(0)
    model = Tagger(WORDS)

    def loss() -> torch.Tensor:
        words = nn.utils.rnn.pad_sequence(sentences(), True, 0)
        labels = words.masked_fill(words == 0, -100)
        inputs, labels = words[:, :-1], labels[:, 1:] if planted else labels[:, :-1]
        labels = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())  # named

    fit(model, loss)


def dataset_of_shifted_pairs(planted: bool) -> None:
    """The pairs of a dataset are shifted already; the second head of the twin looks further."""
    torch.manual_seed(0)
    model, further = Tagger(WORDS), Tagger(WORDS)
    further.table = model.table

    def loss() -> torch.Tensor:
        words = torch.randint(1, WORDS, (8, LENGTH))
        inputs, targets = words[:, :-1], words[:, 1:]
        ahead = F.cross_entropy(further(inputs).transpose(1, 2)[:, :, :-1], targets[:, 1:])
        if planted:
            return ahead
        return ahead + F.cross_entropy(model(inputs).transpose(1, 2), targets)

    fit(further if planted else nn.ModuleList((model, further)), loss)


# ends of texts that the loss leaves out ----------------------------------------------------------

END = WORDS - 1


def texts(end: int = 1) -> list[torch.Tensor]:
    """Words 1 to END - 1 in rows of unequal length, each of them with END behind."""
    return [F.pad(one % (END - 1) + 1, (0, end), value=END) for one in sentences()]


def padding_is_the_end(planted: bool) -> None:
    """Labels are taken out where they are padding; in the twin that is a number of its own."""
    torch.manual_seed(0)
    model, padding = Tagger(WORDS), END if planted else 0

    def loss() -> torch.Tensor:
        words = nn.utils.rnn.pad_sequence(texts(), True, padding)
        labels = words.masked_fill(words == padding, -100)
        scores = model(words)[:, :-1].reshape(-1, WORDS)
        return F.cross_entropy(scores, labels[:, 1:].reshape(-1))  # named

    fit(model, loss)


def padding_before_the_text_is_the_end(planted: bool) -> None:
    """Rows are filled up on the left, with END. The twin takes labels out by their place."""
    torch.manual_seed(0)
    model = Tagger(WORDS)

    def loss() -> torch.Tensor:
        rows = texts()
        words = nn.utils.rnn.pad_sequence(rows, True, END, padding_side="left")
        before = torch.arange(words.shape[1]) < words.shape[1] - torch.tensor(
            [[len(one)] for one in rows]
        )
        labels = words.masked_fill(words == END if planted else before, -100)
        scores = model(words)[:, :-1].transpose(1, 2)
        return F.cross_entropy(scores, labels[:, 1:])  # named

    fit(model, loss)


def ends_ignored_by_the_loss(planted: bool) -> None:
    """The loss ignores END, which fills rows up. The twin's rows have no end, and need none."""
    torch.manual_seed(0)
    model = Tagger(WORDS)

    def loss() -> torch.Tensor:
        words = nn.utils.rnn.pad_sequence(texts(int(planted)), True, END)
        labels = F.pad(words, (0, 1), value=END)[:, 1:].flatten()
        return F.cross_entropy(model(words).flatten(0, 1), labels, ignore_index=END)  # named

    fit(model, loss)


FAULTS = (
    forms(
        "mask of padding inverted, by its weights",
        "learning",
        "mixed_samples",
        "inverted",
        layers_with_dropout_hide_the_words,
        weighing_attention_hides_the_words,
        mask_added_to_scores,
    )
    + loss_faults(
        "weights of attention over another dimension",
        "mixed_samples",
        "pass dim=-1",
        weights_over_the_batch,
        weights_over_heads,
        weights_over_queries,
        weights_of_learned_queries,
    )
    + loss_faults(
        "labels that are shifted twice",
        "wrong_loss",
        "shifted twice",
        labels_of_the_next_words,
        labels_filled_up_by_the_model,
        dataset_of_shifted_pairs,
    )
    + loss_faults(
        "ends of texts that the loss leaves out",
        "wrong_loss",
        "never learns to stop",
        padding_is_the_end,
        padding_before_the_text_is_the_end,
        ends_ignored_by_the_loss,
    )
)
