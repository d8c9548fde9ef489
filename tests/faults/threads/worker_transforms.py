"""Transforms that change from epoch to epoch while workers have an older copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from tests.faults.base import Fault
from tests.faults.threads.loader_workers import ROOM, SIZE, train


class _Masks:
    """Sets a share of a row to zero; `calls` and `name` are not what its calls read."""

    def __init__(self, ratio: float) -> None:
        self.ratio, self.calls, self.name = ratio, 0, ""

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return row.masked_fill(torch.rand(SIZE) < self.ratio, 0.0)


class _Chain:
    """Calls other transforms one after the other."""

    def __init__(self, *steps: Any) -> None:
        self.steps = [*steps]

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            row = step(row)
        return row


class _Noise(torch.nn.Module):
    """Adds noise of a strength."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = 0.0

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return row + self.strength * torch.randn(SIZE)


class _Rows(Dataset[torch.Tensor]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        row: torch.Tensor = self.transform(torch.full((SIZE,), index / 32))
        return row


def _epochs(data: _Rows, change: Callable[[int], None]) -> None:
    loader = DataLoader(data, 8, num_workers=1, persistent_workers=True, shuffle=True)
    for epoch in range(4):
        change(epoch)
        train(loader)


def ratio_of_a_transform(planted: bool) -> None:
    """The twin changes a name, and calls the transform, which counts its calls."""
    masks = _Masks(0.1)

    def change(epoch: int) -> None:
        if planted:
            masks.ratio = 0.1 * epoch
        masks.name = f"epoch {epoch}"
        masks(torch.ones(SIZE))

    _epochs(_Rows(masks), change)


def ratio_within_a_chain(planted: bool) -> None:
    """A list of transforms holds it; the twin's ratio stays."""
    masks = _Masks(0.0)
    data = _Rows(_Chain(_Noise(), masks))
    _epochs(data, lambda epoch: setattr(masks, "ratio", 0.1 * epoch if planted else 0.1))


def strength_of_a_module(planted: bool) -> None:
    """The transform is a module; the twin's strength stays."""
    noise = _Noise()
    _epochs(_Rows(noise), lambda epoch: setattr(noise, "strength", epoch / 8 if planted else 0.5))


FAULTS = tuple(
    Fault(
        "a transform that workers have an older copy of",
        ROOM,
        ("repeated_data",),
        one,
        says="the persistent workers",
        slow=one is not ratio_of_a_transform,
    )
    for one in (ratio_of_a_transform, ratio_within_a_chain, strength_of_a_module)
)
