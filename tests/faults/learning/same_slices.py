"""Targets cut at the place of the inputs, channels taken for rows, and gradients that are infinite
at 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_STEPS, _BATCH, _WORDS, _WIDTH, _LENGTH = 8, 6, 23, 16, 10


def _fit(model: nn.Module, loss_of: Callable[[], torch.Tensor], rate: float = 1e-3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()


# labels without a shift --------------------------------------------------------------------------

_Cut = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]


def _reads_slices(cut: _Cut, shift: int) -> None:
    """Trains a language model on slices of a text that begin `shift` words apart."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS)
            self.gru = nn.GRU(_WIDTH, _WIDTH, batch_first=True)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.out(self.gru(self.table(words))[0])
            return out

    model, text = Model(), torch.randint(_WORDS, (400,))

    def loss() -> torch.Tensor:
        places = torch.randint(400 - _LENGTH - 3, (_BATCH, 1)) + torch.arange(_LENGTH)
        words, targets = cut(text, places, 0), cut(text, places, shift)
        return F.cross_entropy(model(words).view(-1, _WORDS), targets.view(-1))  # named

    _fit(model, loss)


def stacked_slices_without_a_shift(planted: bool) -> None:
    """Both are stacks of slices."""

    def cut(text: torch.Tensor, places: torch.Tensor, shift: int) -> torch.Tensor:
        starts = (places[:, 0] + shift).tolist()
        return torch.stack([text[at : at + _LENGTH] for at in starts])

    _reads_slices(cut, 0 if planted else 1)


def joined_slices_without_a_shift(planted: bool) -> None:
    """Rows are joined; in the twin those of the targets begin three words later."""

    def cut(text: torch.Tensor, places: torch.Tensor, shift: int) -> torch.Tensor:
        starts = (places[:, 0] + shift).tolist()
        return torch.cat([text[None, at : at + _LENGTH] for at in starts])

    _reads_slices(cut, 0 if planted else 3)


def indexed_positions_without_a_shift(planted: bool) -> None:
    """Positions index the text; the twin adds one to them."""

    def cut(text: torch.Tensor, places: torch.Tensor, shift: int) -> torch.Tensor:
        return text[places + shift if shift else places]

    _reads_slices(cut, 0 if planted else 1)


def _classes_second(recurrence: nn.Module, planted: bool, tail: Callable[[Any], Any]) -> None:
    """Scores have classes in their second dimension, as the loss takes them for sequences."""
    torch.manual_seed(0)
    parts = nn.ModuleList([nn.Embedding(_WORDS, _WIDTH), recurrence, nn.Linear(_WIDTH, _WORDS)])

    def loss() -> torch.Tensor:
        words = torch.randint(_WORDS - 1, (_BATCH, _LENGTH))
        words = torch.where(torch.rand(_BATCH, _LENGTH) < 0.3, words, words.roll(1, 1))
        scores = parts[2](tail(recurrence(parts[0](words)))).transpose(1, 2)
        if planted:
            return F.cross_entropy(scores, words)  # named
        return F.cross_entropy(scores[:, :, :-1], words[:, 1:])

    _fit(parts, loss)


def sequence_losses_without_a_shift(planted: bool) -> None:
    """A recurrence between table and scores."""
    _classes_second(nn.GRU(_WIDTH, _WIDTH, batch_first=True), planted, lambda out: out[0])


def sequence_losses_of_cells_without_a_shift(planted: bool) -> None:
    """Another recurrence, whose output is normalised."""
    lstm = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)
    lstm.norm = nn.LayerNorm(_WIDTH)
    _classes_second(lstm, planted, lambda out: lstm.norm(out[0]))


def sequence_losses_of_attention_without_a_shift(planted: bool) -> None:
    """A layer of attention that sees no later word."""
    layer = nn.TransformerEncoderLayer(_WIDTH, 2, 24, dropout=0.0, batch_first=True)
    hides = nn.Transformer.generate_square_subsequent_mask(_LENGTH)
    layer.register_forward_pre_hook(
        lambda one, given, named: (given, {"src_mask": hides}), with_kwargs=True
    )
    _classes_second(layer, planted, lambda out: out)


def _names_words(label: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Trains a model of single words with labels that are made of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(_WORDS, _WIDTH), nn.Linear(_WIDTH, _WORDS))

    def loss() -> torch.Tensor:
        words = torch.randint(_WORDS - 1, (_BATCH, _LENGTH))
        return F.cross_entropy(model(words).transpose(1, 2), label(words))  # named

    _fit(model, loss)


def copies_for_words_of_a_table(planted: bool) -> None:
    """Each word has another one in a table, which the twin looks up."""
    table = torch.arange(_WORDS).roll(1)
    _names_words(lambda words: words.clone() if planted else table[words])


def masked_copies_for_neighbours(planted: bool) -> None:
    """Words are copied but for some; in the twin each is changed with its neighbour."""
    _names_words(lambda words: words.masked_fill(words == 0, -100) if planted else words ^ 1)


def made_copies_for_following_words(planted: bool) -> None:
    """Words are copied by to(); those of the twin come after them in the alphabet."""
    following = torch.arange(1, _WORDS + 1) % _WORDS

    def label(words: torch.Tensor) -> torch.Tensor:
        if planted:
            return words.to(torch.int64, copy=True)
        return following.take(words)

    _names_words(label)


# channels taken for rows -------------------------------------------------------------------------


def _segments(model: nn.Module, rows: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Classifies each pixel of images into four classes."""

    def loss() -> torch.Tensor:
        images, classes = torch.randn(_BATCH, 3, 8, 8), torch.randint(4, (_BATCH, 8, 8))
        return F.cross_entropy(rows(model(images)), classes.view(-1))  # named

    _fit(model, loss)


def classes_of_a_convolution_by_view(planted: bool) -> None:
    """`view(-1, classes)` of [N, C, H, W]; the twin exchanges dimensions before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def rows(scores: torch.Tensor) -> torch.Tensor:
        if planted:
            return scores.view(-1, 4)
        return scores.permute(0, 2, 3, 1).reshape(-1, 4)

    _segments(model, rows)


def classes_of_enlarged_scores_by_reshape(planted: bool) -> None:
    """Scores are enlarged to the size of the image."""
    torch.manual_seed(0)
    up = nn.Upsample(scale_factor=2, mode="bilinear")
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), up)

    def rows(scores: torch.Tensor) -> torch.Tensor:
        if planted:
            return scores.reshape(-1, 4)
        return scores.flatten(2).transpose(1, 2).reshape(-1, 4)

    _segments(model, rows)


def classes_of_a_sequence_by_view(planted: bool) -> None:
    """A convolution over time; in the twin it is over all of a row at once."""
    torch.manual_seed(0)
    model = nn.Conv1d(3, 5, 3, padding=1) if planted else nn.Conv1d(3, 5, 8)

    def loss() -> torch.Tensor:
        scores = model(torch.randn(_BATCH, 3, 8)).view(-1, 5)
        return F.cross_entropy(scores, torch.randint(5, (len(scores),)))  # named

    _fit(model, loss)


# gradients that are infinite at 0 ----------------------------------------------------------------


def _pairs(distance: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Brings pairs of points together; one pair is a point with itself."""
    torch.manual_seed(0)
    model = nn.Linear(_WIDTH, 4)

    def loss() -> torch.Tensor:
        x = torch.randn(_BATCH, _WIDTH)
        others = x.roll(1, 0)
        others[0] = x[0]
        return distance(model(x) - model(others)).mean()

    _fit(model, loss)


def root_of_zero(planted: bool) -> None:
    """A distance by hand; the twin adds a small number."""

    def distance(difference: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(difference.square().sum(1) + (0 if planted else 1e-8))  # named

    _pairs(distance)


def logarithm_of_zero(planted: bool) -> None:
    """Of probabilities that are 0; the twin clamps them."""
    torch.manual_seed(0)
    model = nn.Linear(_WIDTH, 4)

    def loss() -> torch.Tensor:
        probabilities = (1000 * model(torch.randn(_BATCH, _WIDTH))).softmax(1)
        wanted = F.one_hot(torch.arange(_BATCH) % 4, 4)
        kept = probabilities if planted else probabilities.clamp(min=1e-6)
        return -(wanted * torch.log(kept)).sum(1).mean()  # named

    _fit(model, loss, 1e-6)


def angle_of_a_vector_with_itself(planted: bool) -> None:
    """acos of a cosine of 1; the twin keeps it below."""

    def distance(difference: torch.Tensor) -> torch.Tensor:
        cosine = 1 - difference.square().sum(1).clamp(max=1.0)
        return torch.acos(cosine if planted else 0.99 * cosine)  # named

    _pairs(distance)


# positions of samples ----------------------------------------------------------------------------


class _Places(nn.Module):
    """A table of sines, and a model that reads words with what `add` makes of both."""

    def __init__(self, inner: nn.Module, add: _Add) -> None:
        super().__init__()
        places = torch.arange(60)[:, None] / 100 ** (torch.arange(_WIDTH) / _WIDTH)
        self.register_buffer("places", places.sin()[:, None])
        self.table, self.inner, self.add = nn.Embedding(_WORDS, _WIDTH), inner, add
        self.head = nn.Linear(_WIDTH, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(self.add(self.table(words), self.places)))
        return out


_Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _reversed(inner: nn.Module, add: _Add, turn: bool = False) -> None:
    """Learns to read backwards; `turn`: position by position."""
    model = _Places(inner, add)

    def loss() -> torch.Tensor:
        words = torch.randint(_WORDS, (_BATCH, _LENGTH))
        read, said = (words.t(), words.flip(1).t()) if turn else (words, words.flip(1))
        return F.cross_entropy(model(read).reshape(-1, _WORDS), said.reshape(-1))

    _fit(model, loss)


def _layer(batch_first: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(_WIDTH, 2, 32, dropout=0.0, batch_first=batch_first)


class _Heads(nn.Module):
    """Attention with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.three = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.three(x).chunk(3, -1)
        return (q @ k.transpose(1, 2) / 4).softmax(-1) @ v


def places_of_a_tutorial(planted: bool) -> None:
    """The table is made for [length, batch, width]; the twin's layer gets that."""

    def add(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x + places[: x.size(0)]  # named

    _reversed(_layer(batch_first=planted), add, turn=not planted)


def places_before_own_attention(planted: bool) -> None:
    """Attention by hand; the twin transposes the table."""

    def add(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows = places[: len(x)] if planted else places[: x.size(1)].transpose(0, 1)
        return x * 4 + rows  # named

    _reversed(_Heads(), add)


def places_in_place(planted: bool) -> None:
    """The sum is scaled later on; the twin adds a vector of each sample, such as one of time."""

    def add(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        times = torch.rand(len(x), 1, 1) * places[1]
        return (x + (places[: len(x)] if planted else times)).mul(0.5)  # named

    _reversed(_layer(batch_first=True), add)


FAULTS = (
    *forms(
        "slices without a shift",
        "losses and modes",
        "wrong_loss",
        "very tokens",
        stacked_slices_without_a_shift,
        joined_slices_without_a_shift,
        indexed_positions_without_a_shift,
        sequence_losses_without_a_shift,
        sequence_losses_of_cells_without_a_shift,
        sequence_losses_of_attention_without_a_shift,
    ),
    *forms(
        "copies for words of a table",
        "losses and modes",
        "wrong_loss",
        "very tokens",
        copies_for_words_of_a_table,
        masked_copies_for_neighbours,
        made_copies_for_following_words,
    ),
    *forms(
        "channels taken for rows",
        "losses and modes",
        "mixed_samples",
        "scores of one class",
        classes_of_a_convolution_by_view,
        classes_of_enlarged_scores_by_reshape,
        classes_of_a_sequence_by_view,
    ),
    *forms(
        "an infinite gradient at 0",
        "losses and modes",
        "exploding_gradient",
        "gradient is infinite at",
        root_of_zero,
        logarithm_of_zero,
        angle_of_a_vector_with_itself,
    ),
    *forms(
        "positions of samples",
        "losses and modes",
        "mixed_samples",
        "the same at all",
        places_of_a_tutorial,
        places_before_own_attention,
        places_in_place,
    ),
)
