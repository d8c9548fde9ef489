"""Programs that are compared with a baseline whose files or generators of random numbers give
others."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.two_runs import two_run_faults

_STEPS = 10


def _train(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(1)
    for _ in range(_STEPS):
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        F.cross_entropy(model(change(x)), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def _flipped(x: torch.Tensor) -> torch.Tensor:
    return x.flip(1) if random.random() < 0.5 else x * random.uniform(0.5, 1.5)


def _noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(np.random.normal(0, 0.1, tuple(x.shape))).float()


def _seed(number: int = 3) -> None:
    random.seed(number)
    np.random.seed(number)


def plain_flipped() -> None:
    """The baseline of what draws from Python's generator."""
    _seed()
    _train(_flipped)


def plain_noisy() -> None:
    """The baseline of what draws from NumPy's."""
    _seed()
    _train(_noisy)


def another_seed_of_python(planted: bool) -> None:
    """In the twin NumPy's seed, which nothing draws from."""
    _seed()
    (random.seed if planted else np.random.seed)(4)
    _train(_flipped)


def another_seed_of_numpy(planted: bool) -> None:
    """In the twin Python's seed."""
    _seed()
    (np.random.seed if planted else random.seed)(4)
    _train(_noisy)


def one_more_draw_of_python(planted: bool) -> None:
    """A draw before the first step; in the twin from a generator of its own."""
    _seed()
    (random if planted else random.Random(0)).random()
    _train(_flipped)


def _file(name: str, text: str) -> Path:
    """A file that was there before the program."""
    path = Path(tempfile.mkdtemp()) / name
    path.write_text(text)
    os.utime(path, (1, 1))
    return path


def _read(scale: float, note: str = "") -> None:
    settings = json.loads(_file("data.json", json.dumps([scale, note])).read_text())
    _train(lambda x: x * settings[0])


def _loaded(shift: float) -> None:
    path = _file("shift.txt", " ".join([str(shift)] * 8))
    shifts = torch.from_numpy(np.loadtxt(path)).float()
    _train(lambda x: x + shifts)


def _table(rows: int) -> None:
    """Of 2 MB, where one row decides."""
    lines = [f"{row % 7}," * 20 for row in range(40_000)]
    with open(_file("table.csv", "\n".join(lines[:rows])), encoding="utf-8") as file:
        first = float(file.readline().split(",")[0]) + len(file.readlines())
    _train(lambda x: x * first / 40_000)


def plain_read() -> None:
    """The baseline of what reads settings from a file."""
    _read(1.0)


def plain_loaded() -> None:
    """So of numbers."""
    _loaded(0.5)


def plain_table() -> None:
    """So of a table."""
    _table(40_000)


def other_settings_in_a_file(planted: bool) -> None:
    """In the twin another note, which nothing reads."""
    _read(1.1 if planted else 1.0, note="of today")


def other_numbers_in_a_file(planted: bool) -> None:
    """In the twin the same."""
    _loaded(0.75 if planted else 0.5)


def a_shorter_table(planted: bool) -> None:
    """In the twin the same."""
    _table(30_000 if planted else 40_000)


FAULTS = (
    *two_run_faults(
        "another state of Python's or NumPy's generator",
        "the random numbers differ",
        (another_seed_of_python, plain_flipped),
        (another_seed_of_numpy, plain_noisy),
        (one_more_draw_of_python, plain_flipped),
    ),
    *two_run_faults(
        "a file that holds something else",
        "files that both programs read hold something else",
        (other_settings_in_a_file, plain_read),
        (other_numbers_in_a_file, plain_loaded),
        (a_shorter_table, plain_table),
    ),
)
