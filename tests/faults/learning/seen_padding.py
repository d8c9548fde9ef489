"""Weights of attention: those that show an inverted mask, and those over another dimension; labels
that are shifted twice, ends of texts that no label is, rows of tables that are taken for padding,
and scores and targets that are flattened in two orders."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms
from tests.faults.learning.graph_order import Attention, Language, fit, predict_next
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


def numbers_added_hide_nothing(planted: bool) -> None:
    """0 and 1 are added to scores, as they are multiplied with weights elsewhere."""
    torch.manual_seed(0)
    before = torch.ones(LENGTH, LENGTH).tril()
    added = before if planted else (1 - before) * -1e4

    def weigh(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.transpose(-2, -1) / 4 + added).softmax(-1) @ v  # named

    predict_next(Language(Attention(weigh)))


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


# padding_idx of a word ----------------------------------------------------------------------------


def _looked_up(row: int | None, before: bool, words_of: Callable[[], torch.Tensor]) -> None:
    """Classifies texts by the mean of their vectors."""
    torch.manual_seed(0)
    table, head = nn.Embedding(WORDS, WIDTH, padding_idx=row), nn.Linear(WIDTH, 3)

    def loss() -> torch.Tensor:
        words = words_of().flip(1) if before else words_of()
        return F.cross_entropy(head(table(words).mean(1)), torch.randint(3, (len(words),)))  # named

    fit(nn.ModuleList([table, head]), loss)


def _padded() -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(sentences(24), batch_first=True)


def padding_idx_of_another_word(planted: bool) -> None:
    """Texts are filled up with 0."""
    _looked_up(5 if planted else 0, False, _padded)


def padding_idx_of_the_last_word(planted: bool) -> None:
    """The padding comes first; the twin has no padding_idx."""
    _looked_up(-1 if planted else None, True, _padded)


def padding_idx_of_an_unknown_word(planted: bool) -> None:
    """Another number was put where words are unknown; texts of the twin are of one length."""

    def words() -> torch.Tensor:
        return _padded() if planted else torch.randint(WORDS, (24, LENGTH))

    _looked_up(3, False, words)


# positions first ---------------------------------------------------------------------------------


def _tagged(
    scores_of: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, turn: bool
) -> None:
    """Tags words of texts of one length; `turn`: targets position by position."""
    tags = torch.randint(4, (WORDS,))

    def loss() -> torch.Tensor:
        words = torch.randint(WORDS, (6, LENGTH))
        targets = tags[words].t() if turn else tags[words]
        return F.cross_entropy(scores_of(words).reshape(-1, 4), targets.reshape(-1))  # named

    fit(model, loss)


def targets_of_a_recurrence(planted: bool) -> None:
    """An LSTM gets and returns [length, batch, width]; targets of the twin are transposed."""
    torch.manual_seed(0)
    table, inner, head = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
    model = nn.ModuleList([table, inner, head])
    _tagged(lambda words: head(inner(table(words.t()))[0]), model, turn=not planted)


def targets_of_layers_without_batch_first(planted: bool) -> None:
    """The output of a layer of attention; that of the twin is transposed."""
    torch.manual_seed(0)
    table, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 4)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32)

    def scores(words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = layer(table(words).transpose(0, 1))
        return head(out if planted else out.transpose(0, 1))

    _tagged(scores, nn.ModuleList([table, layer, head]), turn=False)


def scores_stacked_by_position(planted: bool) -> None:
    """A decoder's scores are stacked along a new dimension, in the twin along the second."""
    torch.manual_seed(0)
    table, cell, head = nn.Embedding(WORDS, WIDTH), nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def scores(words: torch.Tensor) -> torch.Tensor:
        state, found = torch.zeros(len(words), WIDTH), []
        for place in range(LENGTH):
            state = cell(table(words[:, place]), state)
            found.append(head(state))
        return torch.stack(found, 0 if planted else 1)

    _tagged(scores, nn.ModuleList([table, cell, head]), turn=False)


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
        "attention to the next tokens",
        "wrong_loss",
        "hides no position",
        numbers_added_hide_nothing,
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
    + loss_faults(
        "padding_idx of a word",
        "dead_parameter",
        "not padding",
        padding_idx_of_another_word,
        padding_idx_of_the_last_word,
        padding_idx_of_an_unknown_word,
    )
    + loss_faults(
        "scores and targets flattened in two orders",
        "mixed_samples",
        "of another place",
        targets_of_a_recurrence,
        targets_of_layers_without_batch_first,
        scores_stacked_by_position,
    )
)
