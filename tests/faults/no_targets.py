"""Losses of batches in which no target counts, and of numbers that are no probabilities of the
classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.base import Fault
from tests.faults.losses import ROOM

WORDS = 40


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


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
    )
    for place, (one, says) in enumerate(forms)
)
