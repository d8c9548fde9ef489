"""Workers of a DataLoader that draw the same numbers, or hand out the same samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from tests.faults.base import Fault, Program

ROOM = "threads and processes of torch"
SIZE = 8


def train(loader: Any, pick: Callable[[Any], torch.Tensor] = lambda batch: batch) -> None:
    """Trains an auto-encoder for an epoch."""
    torch.manual_seed(0)
    model = nn.Linear(SIZE, SIZE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in loader:
        x = pick(batch)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()


class Rows(Dataset[torch.Tensor]):
    """Rows with noise that `noise` draws."""

    def __init__(self, noise: Callable[[], Any]) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIZE,), index / 64) + torch.as_tensor(self.noise()).float()


def numpy_seeded_alike(planted: bool) -> None:
    """worker_init_fn with one seed for all; the twin's differs by worker."""

    def seed(worker: int) -> None:  # named
        np.random.seed(1234 if planted else 1234 + worker)

    train(DataLoader(Rows(lambda: np.random.randn(SIZE)), 8, num_workers=2, worker_init_fn=seed))


def everything_seeded_alike(planted: bool) -> None:
    """A function that seeds all, called in main and in each worker; the twin draws nothing."""

    def seed_all(worker: int = 0) -> None:  # named
        random.seed(7)
        torch.manual_seed(7)

    def noise() -> float:
        return random.gauss(0, 1) if planted else 0.0

    seed_all()
    train(DataLoader(Rows(noise), 8, num_workers=3, worker_init_fn=seed_all))


class Crops(Dataset[torch.Tensor]):
    """Draws from a generator of its own, which each worker has a copy of."""

    def __init__(self, own: bool) -> None:
        self.rng, self.own = np.random.default_rng(0), own

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        start = int(self.rng.integers(8)) if self.own else int(torch.randint(8, ()))
        return torch.arange(start, start + SIZE) * index / 1024


def generator_copied_into_each_worker(planted: bool) -> None:
    """The dataset's generator is made in __init__; the twin draws from torch's."""
    train(DataLoader(Crops(planted), 8, shuffle=True, num_workers=2))


class Stream(IterableDataset[Any]):
    """A stream of samples that each worker should take its share of."""

    def __init__(self, samples: Callable[[], Iterator[Any]], shares: bool) -> None:
        self.samples, self.shares = samples, shares

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or not self.shares:
            return self.samples()
        return islice(self.samples(), info.id, None, info.num_workers)


def _numbers() -> Iterator[torch.Tensor]:
    return (torch.full((SIZE,), 0.5 + index / 64) for index in range(64))


def stream_without_shares(planted: bool) -> None:
    """Each worker walks through the whole stream."""
    train(DataLoader(Stream(_numbers, not planted), 8, num_workers=2))


def records_without_shares(planted: bool) -> None:
    """Records are dicts; the twin has one worker."""
    stream = Stream(lambda: ({"x": x, "name": "row"} for x in _numbers()), shares=False)
    loader = DataLoader(stream, 8, num_workers=3 if planted else 1)
    train(loader, lambda batch: batch["x"])


def shuffled_stream_without_shares(planted: bool) -> None:
    """A buffer is shuffled by a fixed seed; the twin's seed differs by worker."""

    def shuffled() -> Iterator[torch.Tensor]:
        info = get_worker_info()
        own = 0 if planted or info is None else info.id
        rows = list(_numbers())
        random.Random(own).shuffle(rows)
        return iter(rows)

    train(DataLoader(Stream(shuffled, shares=False), 8, num_workers=2))


def _faults(name: str, says: str, *programs: Program) -> tuple[Fault, ...]:
    return tuple(
        Fault(name, ROOM, ("repeated_data",), one, says=says, slow=place > 0)
        for place, one in enumerate(programs)
    )


FAULTS = (
    *_faults(
        "workers that draw the same numbers",
        "draw the same random numbers",
        numpy_seeded_alike,
        everything_seeded_alike,
        generator_copied_into_each_worker,
    ),
    *_faults(
        "workers that hand out the same samples",
        "hand out the same samples",
        stream_without_shares,
        records_without_shares,
        shuffled_stream_without_shares,
    ),
)
