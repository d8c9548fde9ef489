"""Results, errors and tensors that processes and threads hand over, and that nothing takes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Callable
from multiprocessing import pool
from typing import Any

import torch
from torch import multiprocessing as torch_processes

from tests.faults.base import Fault
from tests.faults.threads.waiting import deadlocks

_ROOM = "threads and processes of torch"
_SILENT_S = 8
"""For so long a process waits before Ctrl-C: the ones that it started have ended by then."""


def _ctrl_c() -> None:
    """Has Ctrl-C end this process and its children, as in a terminal, where it is recorded."""
    if "LANESCOPE_RECORD" in os.environ:
        loop = f"(sleep {_SILENT_S}; kill -INT 0) &"
        null = subprocess.DEVNULL
        subprocess.run(["sh", "-c", loop], stdout=null, stderr=null, check=True)


def _rollout(results: Any, parts: int) -> None:
    torch.set_num_threads(1)
    for _ in range(parts):
        results.put(torch.randn(20_000).tolist())


def _rollouts(planted: bool, results: Any, parts: int, wait: Callable[[Any], None]) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rollout, args=(results, parts)) for _ in range(2)]
    for one in processes:
        one.start()
    _ctrl_c()
    if not planted:
        for _ in range(2 * parts):
            results.get()
    for one in processes:
        wait(one)


def rollouts_are_joined_first(planted: bool) -> None:
    """The parent starts processes, and runs no operator before it joins them."""
    _rollouts(planted, multiprocessing.get_context("fork").Queue(), 1, lambda one: one.join())


def rollouts_of_a_joinable_queue(planted: bool) -> None:
    """So with a queue whose tasks are counted."""
    queue = multiprocessing.get_context("fork").JoinableQueue()
    _rollouts(planted, queue, 3, lambda one: one.join())


def rollouts_are_awaited_for_long(planted: bool) -> None:
    """The wait has a timeout, longer than the user waits before Ctrl-C."""
    _rollouts(planted, multiprocessing.get_context("fork").Queue(), 2, lambda one: one.join(600))


def _features(number: int) -> float:
    torch.set_num_threads(1)
    rows = torch.ones(4, 7 if number % 3 == 2 else 8)
    return float((rows @ torch.ones(8, 2)).sum())  # the fault


def _drops_results(planted: bool, one: Any, numbers: range) -> None:
    results = [one.apply_async(_features, (number,)) for number in numbers]
    one.close()
    one.join()
    for result in () if planted else results:
        try:
            result.get()
        except RuntimeError:
            continue


def results_of_a_pool_are_dropped(planted: bool) -> None:
    """Tasks are given to a pool of processes, and joined; the twin gets each result."""
    with multiprocessing.get_context("fork").Pool(2) as workers:
        _drops_results(planted, workers, range(6))


def results_of_a_pool_of_threads(planted: bool) -> None:
    """So with a pool of threads."""
    with pool.ThreadPool(2) as workers:
        _drops_results(planted, workers, range(6))


def mapped_results_are_awaited_alone(planted: bool) -> None:
    """wait() raises nothing; the twin hands the error to a callback."""
    errors: list[BaseException] = []
    with multiprocessing.get_context("fork").Pool(2) as workers:
        callback = None if planted else errors.append
        workers.map_async(_features, range(6), error_callback=callback).wait()


def task_that_cannot_be_sent(planted: bool) -> None:
    """A function within a function cannot be sent to a process: the task never runs."""

    def scaled(number: int) -> float:
        return 2.0 * number

    with multiprocessing.get_context("fork").Pool(2) as workers:
        result = workers.apply_async(scaled if planted else float, (3,))  # named
        result.wait()
    torch.ones(3).sum()


def _produces(queue: Any, read: Any, tensors: int) -> None:
    for number in range(tensors):
        queue.put(torch.full((64,), float(number)))
    if read is not None:
        read.wait(60)


def _consumes(planted: bool, take: Callable[[Any], torch.Tensor], tensors: int = 3) -> None:
    context = torch_processes.get_context("spawn")
    queue, read = context.Queue(), context.Event()
    process = context.Process(target=_produces, args=(queue, None if planted else read, tensors))
    process.start()
    if planted:
        process.join()
    for _ in range(tensors):
        take(queue).sum()
    read.set()
    process.join()


def producer_ends_before_its_tensors_are_read(planted: bool) -> None:
    """The reader joins the producer first; in the twin that waits for the reader."""
    _consumes(planted, lambda queue: queue.get())  # named


def producer_ends_and_a_timeout_is_given(planted: bool) -> None:
    """So where the reader is ready to wait."""
    _consumes(planted, lambda queue: queue.get(timeout=30), 1)  # named


def producer_ends_and_a_dict_is_read(planted: bool) -> None:
    """The tensors are within other values, and the producer ends while they are read."""
    context = torch_processes.get_context("spawn")
    queue, read = context.Queue(), context.Event()
    process = context.Process(target=_produces_dicts, args=(queue, None if planted else read))
    process.start()
    if planted:
        process.join()
    sum(queue.get()["x"].sum() for _ in range(3))  # named
    read.set()
    process.join()


def _produces_dicts(queue: Any, read: Any) -> None:
    for number in range(3):
        queue.put({"number": number, "x": torch.full((64,), float(number))})
    if read is not None:
        read.wait(60)


FAULTS = (
    *deadlocks(
        "a process joined before its queue is read",
        rollouts_are_joined_first,
        rollouts_of_a_joinable_queue,
        rollouts_are_awaited_for_long,
        says="a reader of its multiprocessing.Queue",
    ),
    *(
        Fault("an error of a pool that is lost", _ROOM, ("lost_error",), form, says=says)
        for form, says in (
            (results_of_a_pool_are_dropped, "shapes cannot be multiplied"),
            (results_of_a_pool_of_threads, "shapes cannot be multiplied"),
            (mapped_results_are_awaited_alone, "shapes cannot be multiplied"),
            (task_that_cannot_be_sent, "Can't"),
        )
    ),
    *(
        Fault(
            "a tensor of a process that has ended",
            _ROOM,
            ("lost_error",),
            form,
            says="memory of its sender",
            slow=True,
        )
        for form in (
            producer_ends_before_its_tensors_are_read,
            producer_ends_and_a_timeout_is_given,
            producer_ends_and_a_dict_is_read,
        )
    ),
)
