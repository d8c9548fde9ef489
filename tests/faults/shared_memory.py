"""Processes that write to tensors in shared memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.faults.base import Fault

ROUNDS = 40


def two(context: Any, target: Any, *arguments: Any) -> None:
    """Runs a function in two processes, with the number of each and the rounds of both."""
    rounds = context.RawArray("i", 2)
    processes = [
        context.Process(target=target, args=(number, rounds, *arguments)) for number in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def together(number: int, rounds: Any) -> Iterator[None]:
    """Rounds of one of two processes, until both have made ROUNDS: so they run side by side."""
    while min(rounds) < ROUNDS:
        yield
        time.sleep(0.001)  # on a single processor the other one goes on
        rounds[number] += 1


def _train(number: int, rounds: Any, model: nn.Module, lock: Any) -> None:
    torch.manual_seed(number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in together(number, rounds):
        x = torch.randn(16, 8)
        with lock or nullcontext():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def hogwild_in_processes(planted: bool) -> None:
    """Two processes train one model in shared memory; the twin holds a lock for each step."""
    torch.set_num_threads(1)
    model, context = nn.Linear(8, 4), mp.get_context("fork")
    model.share_memory()
    two(context, _train, model, None if planted else context.Lock())


def _count(number: int, rounds: Any, total: torch.Tensor, own: bool) -> None:
    part = total[number] if own else total
    for _ in together(number, rounds):
        part.add_(1)  # named


def histogram_of_all_processes(planted: bool) -> None:
    """Processes count into one table; the twin gives each a row of its own."""
    torch.set_num_threads(1)
    two(mp.get_context("fork"), _count, torch.zeros(2, 64).share_memory_(), not planted)


class Cached(Dataset[Any]):
    """Samples that are kept in a shared table, and how often each was asked for."""

    def __init__(self, counts: bool) -> None:
        self.table, self.hits = torch.zeros(96, 4).share_memory_(), torch.zeros(1).share_memory_()
        self.counts = counts

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> torch.Tensor:
        for _ in range(5):
            row = torch.randn(4000).sort().values[:4]
        self.table[index].copy_(row)
        if self.counts:
            self.hits.add_(1)
        return row


def workers_count_hits(planted: bool) -> None:
    """Data-loading workers fill rows of a shared cache, and add to one shared counter."""
    for batch in DataLoader(Cached(planted), 8, num_workers=2):
        batch.sum()


def _scale(number: int, rounds: Any, table: torch.Tensor, writes: bool) -> None:
    for _ in together(number, rounds):
        if writes or number == 0:
            table.mul_(0.99)
        else:
            table.mean()


def monitor_that_normalises(planted: bool) -> None:
    """One process writes a table and another looks at it; with the fault the other writes too."""
    torch.set_num_threads(1)
    two(mp.get_context("fork"), _scale, torch.ones(64).share_memory_(), planted)


def _answer(table: torch.Tensor, pipe: Any) -> None:
    for _ in range(ROUNDS):
        pipe.recv()
        table.add_(1)
        pipe.send(1)


def turns_by_a_pipe(planted: bool) -> None:
    """Two processes take turns by a pipe; with the fault one does not wait for its turn."""
    torch.set_num_threads(1)
    table, context = torch.zeros(64).share_memory_(), mp.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(table, theirs))
    process.start()
    for _ in range(ROUNDS):
        if planted:
            mine.send(1)
        table.add_(1)
        if not planted:
            mine.send(1)
        mine.recv()
    process.join()


FAULTS = tuple(
    Fault(
        "processes that write to the same shared memory",
        "threads and processes of torch",
        ("race",),
        form,
        says="Data race between processes",
        slow=True,
    )
    for form in (
        hogwild_in_processes,
        histogram_of_all_processes,
        workers_count_hits,
        monitor_that_normalises,
        turns_by_a_pipe,
    )
)
