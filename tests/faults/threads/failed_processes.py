"""Threads and processes that fail, and programs that fail because they wait for them."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import socket
import threading
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.faults.base import Fault, ctrl_c_at_rest
from tests.faults.threads.waiting import deadlocks
from tests.faults.threads.waiting_processes import SILENT_S

_ROOM = "threads and processes of torch"
_WAIT_S = 20
"""For so long a program waits for a process, which has to import torch first."""


def _train(batches: Any) -> None:
    model = nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for x in batches:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()


def prefetcher_that_stacks_unequal_rows(planted: bool) -> None:
    """A thread fails at a row that is too short; the program gives up waiting for batches."""
    batches: queue.Queue[Any] = queue.Queue(2)

    def fill() -> None:
        for number in range(8):
            rows = [torch.randn(9 if planted and number == 5 else 10) for _ in range(3)]
            batches.put(torch.stack([*rows, torch.randn(10)]))  # named
        batches.put(None)

    threading.Thread(target=fill, daemon=True).start()
    _train(iter(lambda: batches.get(timeout=3), None))


class _Volumes(Dataset[torch.Tensor]):
    def __init__(self, killed: bool) -> None:
        self.killed = killed

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.killed and index == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(10) + index


def worker_of_a_loader_was_killed(planted: bool) -> None:
    """For want of memory, say; the twin's workers are ended early, by a break."""
    for number, x in enumerate(DataLoader(_Volumes(planted), 4, num_workers=2)):
        _train([x])
        if number == 6:
            break


def _tokens(number: int) -> list[float]:
    if number == 5:
        os._exit(3)
    row: list[float] = torch.full((10,), float(number)).sin().tolist()
    return row


def task_of_an_executor_left_its_process(planted: bool) -> None:
    """A library ends the process; the twin gives a process up on purpose."""
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        _train(map(torch.tensor, pool.map(_tokens, range(8 if planted else 5))))
    process = context.Process(target=_tokens, args=(1,))
    process.start()
    process.kill()
    process.join()
    _train([torch.randn(4, 10)])


def _configured(results: Any, settings: dict[str, float]) -> None:
    results.put(settings["rate"])


def process_without_its_setting(planted: bool) -> None:
    """A process fails before it has run an operator."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    settings = {"lr" if planted else "rate": 0.1}
    _train([torch.randn(4, 10)])
    context.Process(target=_configured, args=(results, settings), daemon=True).start()
    results.get(timeout=_WAIT_S)


def _rank(rank: int, port: int, settings: list[dict[str, float]], begins: str) -> None:
    layer = nn.Linear(10, 2) if begins == "model" else None
    rate = settings[rank]["rate"] if begins != "data" else 0.1
    if begins == "data" and "lr" in settings[rank]:
        torch.load(f"/nowhere/at/all/part-{rank}.pt")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    limit = timedelta(seconds=_WAIT_S)
    dist.init_process_group("gloo", rank=rank, world_size=2, timeout=limit)
    model = nn.parallel.DistributedDataParallel(layer or nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), rate)
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


def _ranks(planted: bool, begins: str) -> None:
    context = multiprocessing.get_context("spawn")
    settings = [{"rate": 0.1}, {"lr" if planted else "rate": 0.1}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [context.Process(target=_rank, args=(r, port, settings, begins)) for r in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()


def rank_without_its_setting(planted: bool) -> None:
    """Processes that are ranks: one fails first of all, and the other waits for it."""
    _ranks(planted, "settings")


def rank_without_its_setting_has_a_model(planted: bool) -> None:
    """It has made its model before it fails."""
    _ranks(planted, "model")


def rank_without_its_data(planted: bool) -> None:
    """Its part of the data is missing."""
    _ranks(planted, "data")


class _Remote(Dataset[torch.Tensor]):
    """Rows that a worker may read once it has taken a token."""

    def __init__(self, tokens: Any) -> None:
        self.tokens, self.token = tokens, ""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        self.token = self.token or self.tokens.get()
        return torch.randn(10) + index


def fewer_tokens_than_workers(planted: bool) -> None:
    """The workers of a DataLoader share a queue that holds a token for each but one."""
    tokens: Any = multiprocessing.Queue()
    for _ in range(1 if planted else 2):
        tokens.put("token")
    ctrl_c_at_rest(SILENT_S)
    _train(DataLoader(_Remote(tokens), 4, num_workers=2))


def _summed(jobs: Any, results: Any) -> None:
    total = float(torch.zeros(4).sum())
    while (job := jobs.get()) is not None:
        total += float(torch.full((4,), float(job)).sum())
    results.put(total)


def fewer_ends_than_processes(planted: bool) -> None:
    """Two processes take jobs, and one mark says that there are no more."""
    context = multiprocessing.get_context("fork")
    jobs, results = context.Queue(), context.Queue()
    _train([torch.randn(4, 10)])
    processes = [
        context.Process(target=_summed, args=(jobs, results), daemon=True) for _ in range(2)
    ]
    for one in processes:
        one.start()
    for job in [*range(6), None, *([] if planted else [None])]:
        jobs.put(job)
    ctrl_c_at_rest(SILENT_S)
    for one in processes:
        one.join()


def _passed_on(source: Any, target: Any, first: bool) -> None:
    number = float(torch.ones(4).sum())
    for _ in range(4):
        if first:
            target.put(number)
        number = source.get() + 1
        if not first:
            target.put(number)


def processes_that_wait_for_each_other(planted: bool) -> None:
    """Each of two processes passes on what the other sends; in the twin one of them begins."""
    context = multiprocessing.get_context("fork")
    there, back = context.Queue(), context.Queue()
    _train([torch.randn(4, 10)])
    sides = ((there, back, not planted), (back, there, False))
    processes = [context.Process(target=_passed_on, args=side, daemon=True) for side in sides]
    for one in processes:
        one.start()
    ctrl_c_at_rest(SILENT_S)
    for one in processes:
        one.join()


FAULTS = (
    *deadlocks(
        "an item that no process puts",
        fewer_tokens_than_workers,
        fewer_ends_than_processes,
        processes_that_wait_for_each_other,
        says="waits for an item of another process's queue",
    ),
    *(
        Fault("a wait for what has failed", _ROOM, ("lost_error",), form, says=says, slow=True)
        for form, says in (
            (prefetcher_that_stacks_unequal_rows, "and then main raised Empty"),
            (worker_of_a_loader_was_killed, "was killed"),
            (task_of_an_executor_left_its_process, "was killed"),
            (process_without_its_setting, "raised KeyError"),
        )
    ),
    *(
        Fault("a rank that failed before it joined", "ranks", ("hang",), form, says=says, slow=True)
        for form, says in (
            (rank_without_its_setting, "KeyError"),
            (rank_without_its_setting_has_a_model, "KeyError"),
            (rank_without_its_data, "FileNotFoundError"),
        )
    ),
)
