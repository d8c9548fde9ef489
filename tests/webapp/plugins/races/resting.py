"""Programs whose threads all come to rest, each for something that another one was to bring."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset

from tests.webapp.plugins.races.deadlocked import start


def pool() -> None:
    """No circle of locks: one holds what the other needs to fill the queue that it waits for."""
    lock, items, taken = threading.Lock(), queue.Queue[int](), threading.Event()

    def consumer() -> None:
        with lock:
            taken.set()
            items.get()  # fault: consumer

    def producer() -> None:
        taken.wait()
        with lock:  # fault: producer
            items.put(1)

    start(consumer)
    start(producer)
    threads = ThreadPoolExecutor(1, "pool")

    def outer() -> int:
        return threads.submit(int).result()  # fault: outer

    threads.submit(outer).result()  # fault: main


class Stuck(Dataset[torch.Tensor]):
    """Its second batch never comes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 2:
            threading.Event().wait()  # fault: worker
        return torch.ones(2)


def loader() -> None:
    for batch in DataLoader(Stuck(), batch_size=2, num_workers=1):  # fault: loader
        batch.sum()


def served() -> None:
    """A server that waits for requests, until somebody stops it."""
    subprocess.Popen(["sh", "-c", f"sleep 4; kill -TERM {os.getpid()}"])
    queue.Queue[int]().get()


def slow() -> None:
    """Longer than the watchdog waits, and yet it goes on."""
    lock, got = threading.Lock(), threading.Event()
    weight = torch.ones(3, requires_grad=True)

    def holder() -> None:
        with lock:
            got.set()
            time.sleep(4)

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        with lock:
            return gradient

    start(holder)
    got.wait()
    hidden = weight.exp()
    hidden.register_hook(hook)
    hidden.sum().backward()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.ones(3).sum()
    {"pool": pool, "loader": loader, "served": served, "slow": slow}[sys.argv[1]]()
