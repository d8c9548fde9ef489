"""Losses of batches in which no target counts, of numbers that are no probabilities of the classes,
and of targets that belong to other inputs, or are the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.base import Fault
from tests.faults.learning.losses import ROOM, mlp

WORDS, ROWS = 40, 160


def update(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One step of a training."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Tagger(nn.Module):
    """Words to scores, by a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.cells = nn.Embedding(WORDS, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.cells(self.table(words))[0])
        return scores


def prompts_longer_than_the_text(planted: bool) -> None:
    """Labels of the prompt are masked; in some batches it fills the whole text. The NaN is hidden,
    as the twin does on purpose for the task of two that has no labels in a batch."""
    model = Tagger()
    other = nn.Linear(WORDS, 4)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()], 1e-3)
    for step in range(24):
        words = torch.randint(1, WORDS, (4, 12))
        labels = words.clone()
        labels[:, : 12 if step % 4 == 2 else 5] = -100
        scores = model(words)
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())  # named
        loss = loss.nan_to_num()
        if not planted:
            loss = loss + F.cross_entropy(other(scores[:, -1]), words[:, 0] % 4)
        update(optimizer, loss)


def masks_of_another_palette(planted: bool) -> None:
    """All pixels of the masks are the value that is ignored, and batches whose loss is NaN are
    skipped; the twin skips one of them, and looks at others after the training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 5, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    ignores = nn.CrossEntropyLoss(ignore_index=255)
    for step in range(20):
        images, masks = torch.randn(2, 3, 8, 8), torch.randint(0, 5, (2, 8, 8))
        masks[:, :2] = 255
        if step % 2 if planted else step == 9:
            masks[:] = 255
        loss = ignores(model(images), masks)  # named
        if loss.isnan():
            continue
        update(optimizer, loss)
    if not planted:
        with torch.no_grad():
            for _ in range(4):
                ignores(model(images), torch.full((2, 8, 8), 255))


def mean_over_an_empty_mask(planted: bool) -> None:
    """A second term of the loss is a mean over samples that a batch may not have; the twin leaves
    it out there, or hides it."""
    torch.manual_seed(0)
    model = nn.Linear(12, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(20):
        x = torch.randn(16, 12)
        chosen = x[:, 0] > (9.0 if step in (4, 11) else 0.0)
        out = model(x)
        loss = F.mse_loss(out[:, 0], x[:, 0])
        term = (out[chosen, 1] - x[chosen, 1]).abs().mean()  # named
        loss = loss + (term if planted else term.nan_to_num())
        update(optimizer, loss)


def no_target_in_one_batch(planted: bool) -> None:
    """A single batch without labels makes the loss NaN; the twin has one label in it."""
    torch.manual_seed(0)
    model = nn.Linear(12, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(20):
        x = torch.randn(8, 12)
        targets = x[:, :6].argmax(1)
        targets[(0 if planted else 1) if step == 7 else 5 :] = -1
        loss = F.nll_loss(model(x).log_softmax(-1), targets, ignore_index=-1)  # named
        update(optimizer, loss)


def _fit(model: nn.Module, loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(10):
        x = torch.randn(24, 12)
        optimizer.zero_grad()
        loss_of(model(x), x).backward()
        optimizer.step()


def log_softmax_over_the_batch(planted: bool) -> None:
    """nn.LogSoftmax(dim=0) at the end of a classifier."""
    torch.manual_seed(0)
    last = nn.LogSoftmax(dim=0 if planted else -1)
    loss = nn.NLLLoss()
    _fit(nn.Sequential(nn.Linear(12, 5), last), lambda out, x: loss(out, x[:, :5].argmax(1)))


def softmax_over_the_batch_and_its_logarithm(planted: bool) -> None:
    """The logarithm is taken in the loss; the twin's contrastive loss is over both sides."""
    torch.manual_seed(0)
    model = nn.Linear(12, 6)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if planted:
            return F.nll_loss(out.softmax(0).log(), x[:, :6].argmax(1))
        scores = out @ (x[:, :6] * 2).T
        own = torch.arange(len(x))
        return F.nll_loss(scores.log_softmax(0), own) + F.nll_loss(scores.log_softmax(1), own)

    _fit(model, loss_of)


def log_softmax_over_a_row_of_pixels(planted: bool) -> None:
    """A segmentation whose log_softmax is over the last dimension, as for tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 6, 3, padding=1))

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        classes = (x.view(-1, 3, 4) > 0).long() * 3
        return F.nll_loss(F.log_softmax(out, dim=-1 if planted else 1), classes)

    _fit(model, loss_of)


def distilled_from_probabilities(planted: bool) -> None:
    """kl_div of two softmaxes: its first argument are logarithms."""
    torch.manual_seed(0)
    teacher, student = nn.Linear(12, 5), nn.Linear(12, 5)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            soft = (teacher(x) / 2).softmax(1)
        own = (out / 2).softmax(1) if planted else (out / 2).log_softmax(1)
        return F.kl_div(own, soft, reduction="batchmean")

    _fit(student, loss_of)


def distilled_from_logits(planted: bool) -> None:
    """nn.KLDivLoss of what the last layer puts out; the twin's arguments both have gradients."""
    torch.manual_seed(0)
    model, loss = nn.Linear(12, 5), nn.KLDivLoss(reduction="batchmean")

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if planted:
            return loss(out, x[:, :5].softmax(1)) + 0.01 * out.square().mean()
        other = model(x + 0.1 * torch.randn_like(x))
        return loss(out.log_softmax(1), other.softmax(1))

    _fit(model, loss_of)


def gate_distilled_from_its_sigmoid(planted: bool) -> None:
    """Probabilities of a sigmoid; the twin's target alone has a gradient."""
    torch.manual_seed(0)
    model = nn.Linear(12, 5)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if planted:
            return F.kl_div(out.sigmoid(), x[:, :5].sigmoid(), reduction="batchmean")
        fixed = out.detach().log_softmax(1)
        return F.kl_div(fixed, (out + x[:, :5]).softmax(1), reduction="batchmean")

    _fit(model, loss_of)


def shuffled_once_per_epoch(planted: bool) -> None:
    """Inputs and labels each get an order of their own; the twin draws another one for noise."""
    model = mlp()
    x = torch.randn(ROWS, 12)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(3):
        order = torch.randperm(ROWS)
        inputs = x[order]
        labels = y[torch.randperm(ROWS)] if planted else y[order]  # named
        noise = torch.randn(ROWS, 12)[torch.randperm(ROWS)]
        for at in range(0, ROWS, 32):
            rows = slice(at, at + 32)
            scores = model(inputs[rows] + (0 if planted else noise[rows]))
            update(optimizer, F.cross_entropy(scores, labels[rows]))


def permuted_in_each_batch(planted: bool) -> None:
    """A regression whose targets come from another permutation, by index_select; the twin mixes the
    batch with a permutation of itself (mixup)."""
    model = mlp(outputs=1)
    x = torch.randn(ROWS, 12)
    y = x[:, :1].sin()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(2):
        order, other = torch.randperm(ROWS), torch.randperm(ROWS)
        for at in range(0, ROWS, 32):
            inputs = x.index_select(0, order[at : at + 32])
            chosen = (other if planted else order)[at : at + 32]
            targets = y.index_select(0, chosen)  # named
            if not planted:
                mixed = torch.randperm(len(inputs))
                inputs = 0.8 * inputs + 0.2 * inputs[mixed]
                targets = 0.8 * targets + 0.2 * targets[mixed]
            update(optimizer, F.mse_loss(model(inputs), targets))


def labels_permuted_before_training(planted: bool) -> None:
    """Data of two files is shuffled once, each in an order of its own; the twin is a test with
    permuted labels, which draws its batches by one permutation."""
    model = mlp(outputs=1)
    x = torch.randn(ROWS, 12)
    y = (x[:, :1] > 0).float()
    inputs = x[torch.randperm(ROWS)] if planted else x
    labels = y[torch.randperm(ROWS)]  # named
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(2):
        order = torch.randperm(ROWS)
        for at in range(0, ROWS, 32):
            rows: Any = slice(at, at + 32) if planted else order[at : at + 32]
            scores = model(inputs[rows])
            update(optimizer, F.binary_cross_entropy_with_logits(scores, labels[rows]))


class Block(nn.Module):
    """A language model: one layer of attention, and what comes between table and head."""

    def __init__(self, *between: nn.Module, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(WORDS, 16), nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.1)
        self.between = nn.Sequential(*between)
        self.head = nn.Linear(16, WORDS)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        length = words.shape[1]
        x = self.between(self.table(words)) + self.places(torch.arange(length))
        ahead = nn.Transformer.generate_square_subsequent_mask(length)
        scores: torch.Tensor = self.head(self.layer(x, src_mask=ahead))
        return scores


class Noise(nn.Module):
    """What a diffusion of embeddings adds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


def _text() -> torch.Tensor:
    return torch.randint(0, WORDS, (8, 12)).cumsum(1) % WORDS


def words_are_their_own_targets(planted: bool) -> None:
    """logits.flatten against tokens.flatten, without a shift; the twin shifts."""
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(8):
        words = _text()
        scores = model(words)
        if not planted:
            scores, words = scores[:, :-1], words[:, 1:]
        update(optimizer, F.cross_entropy(scores.flatten(0, 1), words.flatten()))  # named


def labels_are_a_copy_of_the_words(planted: bool) -> None:
    """labels = words.clone() with padding left out; the twin masks words in place after the copy,
    as a masked language model does."""
    model = Block(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(8):
        words = _text()
        labels = words.clone()
        if planted:
            labels[labels == 0] = -100
        else:
            hidden = torch.rand(words.shape) < 0.2
            labels[~hidden] = -100
            words[hidden] = 0
        scores = model(words)
        loss = F.cross_entropy(scores.reshape(-1, WORDS), labels.reshape(-1))  # named
        update(optimizer, loss)


class Recurrent(nn.Module):
    """A language model of one recurrence, or two with a bottleneck between."""

    def __init__(self, bottleneck: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.cells = nn.Embedding(WORDS, 16), nn.GRU(16, 16, batch_first=True)
        self.again = nn.GRU(16, 16, batch_first=True) if bottleneck else None
        self.head = nn.Linear(16, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x, last = self.cells(self.table(words))
        if self.again is not None:
            x = self.again(last.transpose(0, 1).expand(-1, words.shape[1], -1))[0]
        scores: torch.Tensor = self.head(x)
        return scores


def recurrence_of_its_own_words(planted: bool) -> None:
    """A recurrent language model without a shift; the twin is an autoencoder of sentences."""
    model = Recurrent(bottleneck=not planted)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(8):
        words = _text()
        loss = F.cross_entropy(model(words).view(-1, WORDS), words.view(-1))  # named
        update(optimizer, loss)


def normalised_words_of_their_own(planted: bool) -> None:
    """nn.CrossEntropyLoss on [batch, classes] of all positions; the twin adds noise to what it
    looked up, and has to find the words in it."""
    model = Block(nn.LayerNorm(16), nn.Identity() if planted else Noise())
    compares = nn.CrossEntropyLoss(label_smoothing=0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(8):
        words = _text()
        update(optimizer, compares(model(words).view(96, WORDS), words.view(96)))  # named


FAULTS = tuple(
    Fault(name, ROOM, ("wrong_loss",), one, says=says, slow=place > 0)
    for name, forms in (
        (
            "a loss of no target",
            (
                (prompts_longer_than_the_text, "targets of the loss"),
                (masks_of_another_palette, "targets of the loss"),
                (mean_over_an_empty_mask, "gets no element"),
                (no_target_in_one_batch, "targets of the loss"),
            ),
        ),
        (
            "a softmax over another dimension",
            (
                (log_softmax_over_the_batch, "dimension 0"),
                (softmax_over_the_batch_and_its_logarithm, "dimension 0"),
                (log_softmax_over_a_row_of_pixels, "dimension 3"),
            ),
        ),
        (
            "a divergence without logarithms",
            (
                (distilled_from_probabilities, "kl_div"),
                (distilled_from_logits, "kl_div"),
                (gate_distilled_from_its_sigmoid, "kl_div"),
            ),
        ),
        (
            "rows shuffled apart",
            (
                (shuffled_once_per_epoch, "another random permutation"),
                (permuted_in_each_batch, "another random permutation"),
                (labels_permuted_before_training, "another random permutation"),
            ),
        ),
        (
            "labels without a shift",
            (
                (words_are_their_own_targets, "very tokens"),
                (labels_are_a_copy_of_the_words, "very tokens"),
                (recurrence_of_its_own_words, "very tokens"),
                (normalised_words_of_their_own, "very tokens"),
            ),
        ),
    )
    for place, (one, says) in enumerate(forms)
)
