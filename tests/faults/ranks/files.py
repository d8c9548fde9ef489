"""Files that ranks write at the same time, or read before another rank has written them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.ranks.one_model import begin, net, rank_faults, sgd, train

_ROWS = 40_000
"""Of a table that takes some time to write."""


def _file(name: str) -> Path:
    """A file that all ranks of this run name alike."""
    return Path(tempfile.gettempdir()) / f"lanescope_{os.getppid()}_{name}.pt"


def _model(rank: int) -> DDP:
    model = net(rank)
    model.register_buffer("table", torch.ones(_ROWS, 32))
    return DDP(model)


# written at the same time ------------------------------------------------------------------------


def model_saved_by_all_ranks(planted: bool) -> None:
    """All ranks save the model after each epoch; in the twin rank 0 does, and the other waits."""
    rank = begin()
    model, path = _model(rank), _file("model")
    for _ in range(3):
        train(model, sgd(model), 3)
        if planted or rank == 0:
            torch.save(model.module.state_dict(), path)
        dist.barrier()
    path.unlink(missing_ok=True)


class _Best:
    """Keeps the best state."""

    def __init__(self, path: Path) -> None:
        self.path, self.best = path, float("inf")

    def __call__(self, loss: float, model: nn.Module) -> None:
        if loss < self.best:
            self.best = loss
            with self.path.open("wb") as file:
                torch.save({"loss": loss, "model": model.state_dict()}, file)


def best_state_of_each_rank(planted: bool) -> None:
    """A callback keeps the best state, on each rank; the twin's file has the rank in its name."""
    rank = begin()
    model = _model(rank)
    best = _Best(_file("best" if planted else f"best{rank}"))
    for epoch in range(3):
        train(model, sgd(model), 3)
        dist.barrier()
        best(1.0 / (epoch + 1), model.module)
    dist.barrier()
    best.path.unlink(missing_ok=True)


def cache_made_by_all_ranks(planted: bool) -> None:
    """Each rank makes the cache of the samples, as it is not there yet; in the twin rank 0 does,
    and the other reads it after a barrier."""
    rank = begin()
    path = _file("cache")
    missing = not path.exists()
    dist.barrier()
    if missing and (planted or rank == 0):
        torch.save(torch.ones(_ROWS, 32), path)
    dist.barrier()
    table = torch.load(path)
    model = DDP(net(rank))
    train(model, sgd(model, float(table[0, 0]) * 0.01))
    dist.barrier()
    path.unlink(missing_ok=True)


# read before it is written -----------------------------------------------------------------------


def _old(rank: int, name: str, state: Any) -> Path:
    """A file of an earlier run or epoch, which both ranks find there."""
    path = _file(name)
    if rank == 0:
        torch.save(state, path)
    dist.barrier()
    return path


def _saves_late(rank: int, state: Any, path: Path, waits: bool) -> None:
    """Rank 0 writes, after some other work; the others wait for it in twins alone."""
    if rank == 0:
        time.sleep(0.3)
        torch.save(state, path)
    if waits:
        dist.barrier()


def best_model_read_by_all(planted: bool) -> None:
    """The best model is saved by rank 0, and loaded by both to go on from there."""
    rank = begin()
    model = DDP(net(rank))
    path = _old(rank, "chosen", model.module.state_dict())
    train(model, sgd(model), 4)
    _saves_late(rank, model.module.state_dict(), path, waits=not planted)
    model.module.load_state_dict(torch.load(path))
    train(model, sgd(model), 2)
    dist.barrier()
    path.unlink(missing_ok=True)


def statistics_of_the_data(planted: bool) -> None:
    """Rank 0 measures the data again; both normalise by what the file holds."""
    rank = begin()
    model = DDP(net(rank))
    path = _old(rank, "statistics", {"mean": torch.zeros(8)})
    _saves_late(rank, {"mean": torch.ones(8)}, path, waits=not planted)
    mean = torch.load(path)["mean"]
    train(model, sgd(model, 0.01 + 0.0 * float(mean.sum())))
    dist.barrier()
    path.unlink(missing_ok=True)


def averaged_weights_for_the_evaluation(planted: bool) -> None:
    """Rank 0 averages the weights of the last epochs and saves them; both evaluate them."""
    rank = begin()
    model = DDP(net(rank))
    path = _old(rank, "averaged", model.module.state_dict())
    for epoch in range(2):
        train(model, sgd(model), 3)
        state = {name: one * 0.5 for name, one in model.module.state_dict().items()}
        _saves_late(rank, state, path, waits=not planted)
        with path.open("rb") as file:
            averaged = torch.load(file)
        evaluated = net(rank)
        evaluated.load_state_dict(averaged)
        with torch.no_grad():
            evaluated(torch.randn(16, 8))
        if not planted or epoch:
            dist.barrier()
    path.unlink(missing_ok=True)


FAULTS = (
    *rank_faults(
        "a file that ranks write at once",
        "shared_file",
        "write the same file at the same time",
        model_saved_by_all_ranks,
        best_state_of_each_rank,
        cache_made_by_all_ranks,
    ),
    *rank_faults(
        "a file that a rank reads too early",
        "shared_file",
        "and so gets an old one or none",
        best_model_read_by_all,
        statistics_of_the_data,
        averaged_weights_for_the_evaluation,
    ),
)
