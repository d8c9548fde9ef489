"""Threads that have nothing in common but addresses, used in turn, or memory that is only read."""

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.webapp.plugins.races.common import together

ROUNDS = 100


def arrays() -> None:
    def work() -> None:
        for number in range(ROUNDS):
            torch.from_numpy(np.full(64, number, np.float32)).add_(1)
            torch.as_tensor(np.full(64, number, np.float32)).mul_(2)
            torch.frombuffer(bytearray(256), dtype=torch.float32).fill_(number)

    together(work, work, work)


def copies() -> None:
    def work() -> None:
        state = {"weight": torch.ones(64)}
        for _ in range(ROUNDS):
            copy.deepcopy(state)["weight"].add_(1)

    together(work, work, work)


def resized() -> None:
    """As FSDP does with what it gathers: so large that malloc asks the system each time."""

    def work() -> None:
        weight = torch.zeros(1)
        for _ in range(ROUNDS):
            weight.untyped_storage().resize_(0)
            weight.untyped_storage().resize_(2**26)
            weight.fill_(1)

    together(work, work, work)


@torch.library.custom_op("lanescope_tests::first_of", mutates_args=())
def first_of(gathered: torch.Tensor) -> torch.Tensor:
    """Writes to what it says it only reads, as FSDP's operator that gathers does."""
    return gathered[:4].fill_(1).clone()


def allocated_in_a_range() -> None:
    def work() -> None:
        for _ in range(ROUNDS):
            with torch.profiler.record_function("gather"):
                gathered = torch.empty(2**24)
                first_of(gathered)
            gathered[:4].add_(1)

    together(work, work, work)


def stacked(batch: list[int]) -> torch.Tensor:
    return torch.stack([torch.full((64,), float(number)) for number in batch])


def sent_by_a_worker() -> None:
    """A thread of the worker copies its batches into shared memory."""
    for _ in DataLoader(range(8), batch_size=2, num_workers=1, collate_fn=stacked):
        pass


class Numbered(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.full((16,), float(number)), number


def collated_by_a_worker() -> None:
    """Into shared memory, which is given back and mapped again."""
    for _ in DataLoader(Numbered(), batch_size=2, num_workers=1):
        pass


def filled_by_another() -> None:
    """Made before the thread was started, and not by an operator that is recorded."""
    batch, filled = torch.empty(64), threading.Event()

    def fill() -> None:
        batch.fill_(1)
        filled.set()

    thread = threading.Thread(target=fill)
    thread.start()
    time.sleep(0.01)
    torch.ones(3).mul(2)  # the first that is recorded of this thread since
    filled.wait()
    batch.sum()
    thread.join()


def of_another_shape() -> None:
    """What is known of a tensor is each tensor's own; the elements are only read."""
    table = torch.arange(12.0).reshape(3, 4)

    def turn() -> None:
        turned = table.detach()
        turned.swapaxes_(0, 1)
        turned.set_(table.untyped_storage(), 0, (12,), (1,))

    def read() -> None:
        table.sum()

    together(turn, read)


def statistics_between_backwards() -> None:
    """A lock orders the passes that use running statistics; backward runs outside of it."""
    norm, lock = nn.BatchNorm1d(3), threading.Lock()

    def train() -> None:
        for _ in range(3):
            with lock:
                made = norm.train()(torch.randn(5, 3)).square().sum()
            made.backward()

    def evaluate() -> None:
        for _ in range(3):
            with lock, torch.no_grad():
                norm.eval()(torch.randn(5, 3))

    together(train, evaluate)


def run() -> None:
    for clean in (
        arrays,
        copies,
        resized,
        allocated_in_a_range,
        sent_by_a_worker,
        collated_by_a_worker,
        filled_by_another,
        of_another_shape,
        statistics_between_backwards,
    ):
        clean()
