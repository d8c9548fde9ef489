"""Transforms that change from epoch to epoch while workers have an older copy, and transforms with
a random generator that is copied into each worker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from tests.faults.base import forms
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


def ratio_within_a_subset(planted: bool) -> None:
    """The dataset is a part of another one, which counts the epochs in the twin."""
    data = _Rows(_Masks(0.0))
    part = Subset(data, range(16))

    def change(epoch: int) -> None:
        setattr(data.transform, "ratio" if planted else "name", 0.1 * epoch)

    loader = DataLoader(part, 8, num_workers=1, persistent_workers=True)
    for epoch in range(4):
        change(epoch)
        train(loader)


class _Jitter:
    """Adds noise from a generator of its own; `draw` draws."""

    def __init__(self, rng: Any, draw: Callable[[Any], Any]) -> None:
        self.rng, self.draw = rng, draw

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        return row + 0.1 * torch.as_tensor(self.draw(self.rng)).float()


def noise_of_a_transform(planted: bool) -> None:
    """numpy's older generator; each worker of the twin seeds its copy."""
    jitter = _Jitter(np.random.RandomState(0), lambda rng: rng.randn(SIZE))

    def seed(worker: int) -> None:
        info = get_worker_info()
        if not planted and info is not None:
            info.dataset.transform.rng.seed(info.seed % 2**32)

    train(DataLoader(_Rows(jitter), 8, num_workers=2, worker_init_fn=seed))


class _Numbered(_Jitter):
    """Seeds its generator for each sample."""

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        self.rng.seed(int(row[0] * 32))
        return super().__call__(row)


def noise_of_a_list_of_transforms(planted: bool) -> None:
    """Python's generator; the twin seeds it for each sample, by its number."""
    kind = _Jitter if planted else _Numbered
    jitter = kind(random.Random(0), lambda rng: rng.gauss(0, 1))
    train(DataLoader(_Rows(_Chain(_Masks(0.1), jitter)), 8, num_workers=2))


def noise_within_a_subset(planted: bool) -> None:
    """A part of a dataset, with torch's generator; the twin has one worker."""
    jitter = _Jitter(torch.Generator().manual_seed(5), lambda rng: torch.randn(SIZE, generator=rng))
    part = Subset(_Rows(jitter), range(24))
    train(DataLoader(part, 8, num_workers=2 if planted else 1))


FAULTS = (
    *forms(
        "a transform that workers have an older copy of",
        ROOM,
        "repeated_data",
        "the persistent workers",
        ratio_of_a_transform,
        ratio_within_a_chain,
        strength_of_a_module,
        ratio_within_a_subset,
    ),
    *forms(
        "a transform's generator that is copied into each worker",
        ROOM,
        "repeated_data",
        "draw the same random numbers from the dataset's",
        noise_of_a_transform,
        noise_of_a_list_of_transforms,
        noise_within_a_subset,
    ),
)
