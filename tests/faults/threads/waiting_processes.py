"""Programs whose processes wait for each other until somebody presses Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from typing import Any

import torch

from tests.faults.base import ctrl_c_at_rest
from tests.faults.threads.waiting import deadlocks, start, work

_LOCK = threading.Lock()


def _hold_lock(*, until_end: bool) -> None:
    """Returns once a thread has the lock, and holds it until the end; or when that released it."""
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with _LOCK:
            held.set()
            free.wait()

    thread = start(hold)
    held.wait()
    if not until_end:
        free.set()
        thread.join()


def _child(lock: Any) -> None:
    with lock:
        work()


def forked_with_a_held_lock(planted: bool) -> None:
    """A thread holds a lock while the process forks; the child, which runs no operator, waits."""
    work()
    _hold_lock(until_end=planted)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(_LOCK,))
    child.start()
    ctrl_c_at_rest()
    child.join()


def forked_pool_with_a_held_lock(planted: bool) -> None:
    """A pool of forked workers inherits a lock that a logging thread holds."""
    work()
    _hold_lock(until_end=planted)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        result = pool.apply_async(_locked)
        ctrl_c_at_rest()
        result.get()


def _locked() -> int:
    with _LOCK:
        return 1


class _Cached(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that a cache hands out under a lock."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with _LOCK:
            return torch.ones(16) * index


def loader_workers_forked_with_a_held_lock(planted: bool) -> None:
    """A thread fills a dataset's cache while the DataLoader forks its workers."""
    _hold_lock(until_end=planted)
    ctrl_c_at_rest()
    for rows in torch.utils.data.DataLoader(_Cached(), batch_size=4, num_workers=2):
        work().add(rows.sum())


def forked_by_hand_with_a_held_lock(planted: bool) -> None:
    """os.fork() within a lock that another thread holds."""
    work()
    _hold_lock(until_end=planted)
    child = os.fork()
    if child == 0:
        with _LOCK:
            os._exit(0)
    ctrl_c_at_rest()
    os.waitpid(child, 0)


_PUT = 100_000
"""Numbers, which are more bytes than a pipe holds."""


def _answers(results: Any, parts: int) -> None:
    for _ in range(parts):
        results.put([float(work())] * (_PUT // parts))


def _forked(target: Any, *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(
        target=target, args=arguments, daemon=True
    )
    process.start()
    return process


def joined_before_its_result_is_read(planted: bool) -> None:
    """The parent waits for the end of a process whose result is still in the queue."""
    results: Any = multiprocessing.get_context("fork").Queue()
    work()
    process = _forked(_answers, results, 1)
    ctrl_c_at_rest()
    if planted:
        process.join()
    results.get()
    process.join()


def one_of_two_results_is_read(planted: bool) -> None:
    """Each process puts two results; the parent expects one."""
    results: Any = multiprocessing.get_context("fork").Queue()
    work()
    processes = [_forked(_answers, results, 2) for _ in range(2)]
    ctrl_c_at_rest()
    for _ in range(2 if planted else 4):
        results.get()
    for process in processes:
        process.join()


def reports_are_read_at_the_end(planted: bool) -> None:
    """A worker reports each of its steps; the parent collects the reports once it has ended."""
    reports: Any = multiprocessing.get_context("fork").JoinableQueue()
    work()
    process = _forked(_answers, reports, 50)
    ctrl_c_at_rest()
    if not planted:
        for _ in range(50):
            reports.get()
    process.join()
    while not reports.empty():
        reports.get()


def _joined_first(method: str, planted: bool, parts: int) -> None:
    """Ctrl-C comes to the process as well whose result is still in the queue."""
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    process = context.Process(target=_answers, args=(results, parts))
    process.start()
    ctrl_c_at_rest(SILENT_S, also=(process.pid,))
    if planted:
        process.join()
    for _ in range(parts):
        results.get()
    process.join()


def joined_before_its_results_are_read(planted: bool) -> None:
    """A process that is spawned."""
    _joined_first("spawn", planted, 1)


def forked_and_joined_before_it_is_read(planted: bool) -> None:
    """One that is forked."""
    _joined_first("fork", planted, 1)


def joined_before_many_results_are_read(planted: bool) -> None:
    """And one with several results."""
    _joined_first("spawn", planted, 20)


def _doubles(tasks: Any, results: Any, wrong: int) -> None:
    """Doubles numbers until None comes, and raises at a wrong one."""
    while (number := tasks.get()) is not None:
        if number == wrong:
            raise ValueError(f"bad number {number}")
        results.put(float(work()) + 2 * number)


def _crashed(numbers: list[int], wrong: int, context: str, workers: int = 1) -> None:
    """Has processes double numbers, and collects as many results."""
    start_of: Any = multiprocessing.get_context(context)
    tasks, results = start_of.Queue(), start_of.Queue()
    work()
    processes = [
        start_of.Process(target=_doubles, args=(tasks, results, wrong), daemon=True)
        for _ in range(workers)
    ]
    for one in processes:
        one.start()
    for number in numbers:
        tasks.put(number)
    results.get()  # they have begun
    ctrl_c_at_rest()
    for _ in numbers[1:]:
        results.get()
    for _ in processes:
        tasks.put(None)
    for one in processes:
        one.join()


def worker_raised_at_a_task(planted: bool) -> None:
    """A worker raises at the third of five tasks."""
    _crashed([1, 2, 7, 3, 4], 7 if planted else 9, "fork")


def spawned_worker_raised(planted: bool) -> None:
    """So does one that runs in an interpreter of its own."""
    _crashed([1, 7, 2], 7 if planted else 9, "spawn")


def all_of_two_workers_raised(planted: bool) -> None:
    """Each of two workers raises, and a task is left."""
    _crashed([1, 7, 7, 2], 7 if planted else 9, "fork", 2)


SILENT_S = 6
"""For so long a process that has ended shows no sign of life, before anything is said of it."""


def _last_batch(number: int) -> float:
    torch.set_num_threads(1)
    return float(torch.randn(4, 4).sum()) + number


def _killed_at(number: int) -> float:
    value = _last_batch(number)
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def worker_of_a_pool_was_killed(planted: bool) -> None:
    """As the kernel does for want of memory; the pool starts another one, and forgets the task."""
    work()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        function = _killed_at if planted else _last_batch
        result = pool.map_async(function, range(8), chunksize=1)
        ctrl_c_at_rest(SILENT_S)
        result.get()


def task_of_a_pool_left_the_process(planted: bool) -> None:
    """A library in the task ends its process; the results are taken one by one."""
    work()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = pool.imap(_exits_at if planted else _last_batch, range(6))
        ctrl_c_at_rest(SILENT_S)
        list(results)


def _exits_at(number: int) -> float:
    value = _last_batch(number)
    if number == 3:
        os._exit(0)
    return value


def producer_was_killed(planted: bool) -> None:
    """A process that puts batches into a queue is killed before the last one."""
    work()
    context = multiprocessing.get_context("fork")
    batches: Any = context.Queue()

    def produce() -> None:
        for number in range(5):
            batches.put(_last_batch(number))
        batches.close()
        batches.join_thread()
        (_killed_at if planted else _last_batch)(5)

    context.Process(target=produce, daemon=True).start()
    ctrl_c_at_rest(SILENT_S)
    for _ in range(6 if planted else 5):
        batches.get()


def _given_up(method: str, target: Any) -> None:
    """Starts a process, gives it some seconds, and goes on."""
    work()
    process = multiprocessing.get_context(method).Process(target=target)
    process.start()
    process.join(2)
    process.kill()
    process.join()
    work()


def _logs() -> None:
    work()
    with _LOCK:  # named
        work()


def forked_writer_is_given_up(planted: bool) -> None:
    """A forked process waits for the lock of a log; its parent goes on after two seconds."""
    _hold_lock(until_end=planted)
    _given_up("fork", _logs)


def _tries() -> None:
    work()
    _LOCK.acquire(timeout=1)


def forked_process_gives_up(planted: bool) -> None:
    """The forked process itself waits for a second."""
    _hold_lock(until_end=planted)
    _given_up("fork", _tries)


_AGAIN = threading.RLock()


def _cached() -> None:
    with _AGAIN:
        work()


def forked_with_a_reentrant_lock(planted: bool) -> None:
    """A cache that is filled by a thread has a lock that can be taken again."""
    held, free = threading.Event(), threading.Event()

    def fill() -> None:
        with _AGAIN:
            held.set()
            free.wait()

    thread = start(fill)
    held.wait()
    if not planted:
        free.set()
        thread.join()
    _given_up("fork", _cached)


FAULTS = (
    *deadlocks(
        "a fork with a held lock that is given up",
        forked_writer_is_given_up,
        forked_process_gives_up,
        forked_with_a_reentrant_lock,
        says="held as it forked",
    ),
    *deadlocks(
        "a process that was killed and is waited for",
        worker_of_a_pool_was_killed,
        task_of_a_pool_left_the_process,
        producer_was_killed,
        says="was killed",
    ),
    *deadlocks(
        "a fork with a held lock",
        loader_workers_forked_with_a_held_lock,
        forked_with_a_held_lock,
        forked_pool_with_a_held_lock,
        forked_by_hand_with_a_held_lock,
    ),
    *deadlocks(
        "a process joined before its queue is read",
        joined_before_its_result_is_read,
        one_of_two_results_is_read,
        reports_are_read_at_the_end,
        says="a reader of its multiprocessing.Queue",
    ),
    *deadlocks(
        "a process joined before its queue is read, all in one terminal",
        joined_before_its_results_are_read,
        forked_and_joined_before_it_is_read,
        joined_before_many_results_are_read,
        says="a reader of its multiprocessing.Queue",
    ),
    *deadlocks(
        "a process that raised and is waited for",
        worker_raised_at_a_task,
        spawned_worker_raised,
        all_of_two_workers_raised,
        says="bad number",
    ),
)
