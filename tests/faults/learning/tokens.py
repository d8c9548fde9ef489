"""Tokens and positions: padding that is taken for data, masks, dimensions of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.faults.base import Fault
from tests.faults.learning.graph_order import fit

WORDS, WIDTH, HEADS, LENGTH, TAGS = 30, 16, 2, 10, 5


def sentences(rows: int = 8) -> list[torch.Tensor]:
    """Words 1 to WORDS - 1, in rows of unequal length."""
    lengths = torch.randint(3, LENGTH, (rows,)).tolist()
    return [torch.randint(1, WORDS, (length,)) for length in (*lengths, LENGTH)]


class Tagger(nn.Module):
    """Scores for each word."""

    def __init__(self, classes: int = TAGS) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.inner, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(self.table(words))[0])
        return out


# padding that counts -----------------------------------------------------------------------------


def tags_of_padding(planted: bool) -> None:
    """Tags are filled up with 0, which no word has."""
    torch.manual_seed(0)
    model, ignored = Tagger(), -100 if planted else 0

    def loss() -> torch.Tensor:
        words = sentences()
        tags = pad_sequence([one % (TAGS - 1) + 1 for one in words], True, 0)
        scores = model(pad_sequence(words, True, 0)).view(-1, TAGS)
        return F.cross_entropy(scores, tags.view(-1), ignore_index=ignored)  # named

    fit(model, loss)


def next_words_of_padding(planted: bool) -> None:
    """A language model whose rows are filled up with 0."""
    torch.manual_seed(0)
    model = Tagger(WORDS)
    weigh = nn.CrossEntropyLoss() if planted else nn.CrossEntropyLoss(ignore_index=0)

    def loss() -> torch.Tensor:
        words = pad_sequence(sentences(), True, 0)
        scores = model(words[:, :-1])
        value: torch.Tensor = weigh(scores.transpose(1, 2), words[:, 1:])  # named
        return value

    fit(model, loss)


def padding_before_the_words(planted: bool) -> None:
    """Rows are filled up on the left; labels are shifted within the loss."""
    torch.manual_seed(0)
    model = Tagger(WORDS)

    def loss() -> torch.Tensor:
        words = pad_sequence(sentences(), True, 0, padding_side="left")
        labels = words if planted else words.masked_fill(words == 0, -100)
        scores = model(words)[:, :-1].reshape(-1, WORDS)
        return F.cross_entropy(scores, labels[:, 1:].reshape(-1))  # named

    fit(model, loss)


def tags_of_padding_alone(planted: bool) -> None:
    """The same with a loss of all dimensions."""
    torch.manual_seed(0)
    model, ignored = Tagger(), -100 if planted else 0

    def loss() -> torch.Tensor:
        words = sentences()
        tags = pad_sequence([one % (TAGS - 1) + 1 for one in words], True, 0)
        scores = model(pad_sequence(words, True, 0)).transpose(1, 2)
        return F.cross_entropy(scores, tags, ignore_index=ignored)  # named

    fit(model, loss)


def losses_are_masked() -> None:
    """The loss of each word is multiplied with a mask."""
    torch.manual_seed(0)
    model = Tagger()

    def loss() -> torch.Tensor:
        words = sentences()
        padded = pad_sequence(words, True, 0)
        tags = pad_sequence([one % (TAGS - 1) + 1 for one in words], True, 0)
        each = F.cross_entropy(model(padded).view(-1, TAGS), tags.view(-1), reduction="none")
        there = (padded.view(-1) != 0).float()
        return (each * there).sum() / there.sum()

    fit(model, loss)


def padding_has_a_tag_of_its_own() -> None:
    """Words have the tag of the padding as well: it may be meant."""
    torch.manual_seed(0)
    model = Tagger()

    def loss() -> torch.Tensor:
        words = sentences()
        tags = pad_sequence([one % TAGS for one in words], True, 0)
        return F.cross_entropy(model(pad_sequence(words, True, 0)).view(-1, TAGS), tags.view(-1))

    fit(model, loss)


# masks that show padding -------------------------------------------------------------------------


class Classifier(nn.Module):
    """Attention, then a class of each row."""

    def __init__(self, attend: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, TAGS)
        self.layers, self.attend = nn.ModuleList(layers), attend

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.attend(self.table(words), words != 0)[:, 0])
        return out


def classify(model: nn.Module) -> None:
    """Rows of unequal length, none of them whole."""

    def loss() -> torch.Tensor:
        words = F.pad(pad_sequence(sentences(), True, 0), (0, 1))
        return F.cross_entropy(model(words), words[:, 0] % TAGS)

    fit(model, loss)


def layers_hide_the_words(planted: bool) -> None:
    """src_key_padding_mask is true where words are."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    inner = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def attend(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = inner(x, src_key_padding_mask=words if planted else ~words)  # named
        return out

    classify(Classifier(attend, inner))


def fused_attention_sees_padding(planted: bool) -> None:
    """The mask of the fused function is true where attention may look."""
    torch.manual_seed(0)
    inner = nn.Linear(WIDTH, 3 * WIDTH)

    def attend(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        q, k, v = inner(x).unsqueeze(1).chunk(3, -1)
        mask = (~words if planted else words)[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # named
        return out.squeeze(1)

    classify(Classifier(attend, inner))


def scores_of_words_are_hidden(planted: bool) -> None:
    """masked_fill() gets the mask of the words."""
    torch.manual_seed(0)
    inner = nn.Linear(WIDTH, 3 * WIDTH)

    def attend(x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        q, k, v = inner(x).chunk(3, -1)
        hidden = (words if planted else ~words)[:, None, :]
        scores = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill(hidden, -1e9)  # named
        return scores.softmax(-1) @ v

    classify(Classifier(attend, inner))


# sequences and samples ---------------------------------------------------------------------------

BATCH = 12


class Last(nn.Module):
    """A recurrence over [batch, length, features], and a class of its last output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(x)[0][:, -1])  # named
        return out


def series(model: Any, loss_of: Callable[[Any, Any], torch.Tensor], batch: int = BATCH) -> None:
    """Trains on rows of numbers."""

    def loss() -> torch.Tensor:
        x = torch.randn(batch, LENGTH, WIDTH)
        return loss_of(model(x), (x.sum((1, 2)) > 0).long())

    fit(model, loss)


def recurrence_over_the_batch(planted: bool) -> None:
    """batch_first is forgotten."""
    torch.manual_seed(0)
    series(Last(nn.LSTM(WIDTH, WIDTH, batch_first=not planted)), F.cross_entropy)


def gated_recurrence_over_the_batch(planted: bool) -> None:
    """The same in two directions, with a regression."""
    torch.manual_seed(0)
    half = nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=not planted)
    series(Last(half), lambda out, y: F.mse_loss(out[:, 0], y.float()))


class Pooled(nn.Module):
    """Layers of attention over [batch, length, features], and a class of their mean."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.1, batch_first=batch_first)
        self.inner = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.inner(self.first(x))  # named
        out: torch.Tensor = self.head(hidden.mean(1)).squeeze(1)
        return out


def attention_over_the_batch(planted: bool) -> None:
    """nn.TransformerEncoderLayer without batch_first."""
    torch.manual_seed(0)
    series(Pooled(not planted), lambda out, y: F.binary_cross_entropy_with_logits(out, y.float()))


def sequences_come_first() -> None:
    """The input is [length, batch, features], as the layers expect; a number for each position."""
    torch.manual_seed(0)
    inner, head = nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    model = nn.ModuleList((inner, head))

    def loss() -> torch.Tensor:
        x = torch.randn(LENGTH, BATCH, WIDTH)
        return F.mse_loss(head(inner(x)[0]), x.sum(2, keepdim=True))

    fit(model, loss)


def a_sentence_at_a_time() -> None:
    """A batch of one sentence has a tag for each position."""
    torch.manual_seed(0)
    inner, head = nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
    model = nn.ModuleList((inner, head))

    def loss() -> torch.Tensor:
        x = torch.randn(LENGTH, WIDTH)
        return F.cross_entropy(head(inner(x[:, None])[0][:, 0]), (x.sum(1) > 0).long())

    fit(model, loss)


# a decoder that sees its targets -----------------------------------------------------------------


class Translator(nn.Module):
    """An encoder and a decoder of torch."""

    def __init__(self, tables: int = 2, first: bool = False) -> None:
        super().__init__()
        self.read = nn.Embedding(WORDS, WIDTH)
        self.wrote = self.read if tables == 1 else nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Transformer(
            WIDTH, HEADS, 1, 1, 32, dropout=0.0, batch_first=True, norm_first=first
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = self.inner.generate_square_subsequent_mask(target.shape[1])
        wrote = self.wrote(target)
        out: torch.Tensor = self.head(self.inner(self.read(words), wrote, tgt_mask=mask))
        return out


def translate(model: nn.Module, planted: bool, same: bool = False) -> None:
    """Words, and the same words backwards after a first one."""

    def loss() -> torch.Tensor:
        words = torch.randint(2, WORDS, (8, LENGTH))
        target = F.pad(words if same else words.flip(1), (1, 0), value=1)
        wrote, expected = (target, target) if planted else (target[:, :-1], target[:, 1:])
        scores = model(words, wrote)
        return F.cross_entropy(scores.reshape(-1, WORDS), expected.reshape(-1))  # named

    fit(model, loss)


def decoder_reads_its_targets(planted: bool) -> None:
    """The target is not shifted."""
    torch.manual_seed(0)
    translate(Translator(), planted)


def decoder_with_a_shared_table(planted: bool) -> None:
    """Encoder and decoder share a table."""
    torch.manual_seed(0)
    translate(Translator(1), planted)


def decoder_that_normalises_first(planted: bool) -> None:
    """Layers normalise what they read. The twin writes down what it reads."""
    torch.manual_seed(0)
    translate(Translator(first=True), planted, same=not planted)


FAULTS = (
    *(
        Fault("padding in the loss", "learning", ("wrong_loss",), program, twin, "padded")
        for program, twin in (
            (tags_of_padding, losses_are_masked),
            (next_words_of_padding, None),
            (padding_before_the_words, None),
            (tags_of_padding_alone, padding_has_a_tag_of_its_own),
        )
    ),
    *(
        Fault("mask of padding inverted", "learning", ("mixed_samples",), program, says="inverted")
        for program in (
            layers_hide_the_words,
            fused_attention_sees_padding,
            scores_of_words_are_hidden,
        )
    ),
    *(
        Fault("batch taken for a sequence", "learning", ("mixed_samples",), program, twin, "mixes")
        for program, twin in (
            (recurrence_over_the_batch, sequences_come_first),
            (gated_recurrence_over_the_batch, a_sentence_at_a_time),
            (attention_over_the_batch, None),
        )
    ),
    *(
        Fault("decoder reads its targets", "learning", ("wrong_loss",), program, says="very tokens")
        for program in (
            decoder_reads_its_targets,
            decoder_with_a_shared_table,
            decoder_that_normalises_first,
        )
    ),
)
