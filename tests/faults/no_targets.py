"""Losses of batches in which no target counts."""

from __future__ import annotations

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


FAULTS = tuple(
    Fault("a loss of no target", ROOM, ("wrong_loss",), one, says=says, slow=place > 0)
    for place, (one, says) in enumerate(
        (
            (prompts_longer_than_the_text, "targets of the loss"),
            (masks_of_another_palette, "targets of the loss"),
            (mean_over_an_empty_mask, "gets no element"),
            (no_target_in_one_batch, "targets of the loss"),
        )
    )
)
