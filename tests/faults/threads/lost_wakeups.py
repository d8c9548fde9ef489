"""Programs whose only thread waits for a thread that has ended, or for the other end of a pipe,
until somebody ends them."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.faults.base import Fault, ctrl_c_at_rest
from tests.faults.threads.waiting import deadlocks, start, work


def notified_before_the_wait(planted: bool) -> None:
    """A condition without a predicate: all notifications come before the first wait; the twin
    looks whether something is there."""
    condition = threading.Condition()
    box: list[Any] = []

    def produce() -> None:
        for _ in range(4):
            with condition:
                box.append(work())
                condition.notify()

    start(produce).join()
    ctrl_c_at_rest(signal="KILL")
    for _ in range(4):
        with condition:
            if planted:
                condition.wait()
            else:
                condition.wait_for(lambda: box)
            box.pop()


def queue_without_an_end_mark(planted: bool) -> None:
    """The loader returns after its last batch, and the loop asks for one more; the twin's loader
    puts None."""
    batches: queue.Queue[Any] = queue.Queue(4)

    def load() -> None:
        for _ in range(10):
            batches.put(work())
        if not planted:
            batches.put(None)

    start(load)
    ctrl_c_at_rest(signal="TERM")
    while (batch := batches.get()) is not None:
        batch + work()


def queue_of_a_loader_that_ended(planted: bool) -> None:
    """So with a loader per epoch, and Ctrl-C where nothing comes any more."""
    ctrl_c_at_rest()
    for _ in range(2):
        batches: queue.Queue[Any] = queue.Queue(2)

        def load(batches: queue.Queue[Any] = batches) -> None:
            for _ in range(6):
                batches.put(work())
            if not planted:
                batches.put(None)

        start(load)
        while (batch := batches.get()) is not None:
            batch + work()


def permits_that_are_too_few(planted: bool) -> None:
    """A worker releases a semaphore once per batch, and one batch is lost by an early return."""
    done, batches = threading.Semaphore(0), [work() for _ in range(6)]

    def train() -> None:
        for number, batch in enumerate(batches):
            if planted and number == 5:
                return
            batch + work()
            done.release()

    start(train)
    ctrl_c_at_rest(signal="KILL")
    for _ in batches:
        done.acquire()


_LARGE = 400
"""Rows of what no pipe holds."""


def _echoes(end: Any, times: int) -> None:
    for _ in range(times):
        end.send((torch.zeros(_LARGE, _LARGE) + 1).numpy())
        end.recv()


def _piped(target: Any, *arguments: Any) -> tuple[Any, Any]:
    """Starts a process at the other end of a pipe."""
    fork = multiprocessing.get_context("fork")
    own, other = fork.Pipe()
    process = fork.Process(target=target, args=(other, *arguments), daemon=True)
    process.start()
    return own, process


def both_ends_send_first(planted: bool) -> None:
    """Two processes exchange arrays; the twin receives first."""
    own, process = _piped(_echoes, 3)
    ctrl_c_at_rest(after_s=8, also=(process.pid,))  # the other end begins later
    for _ in range(3):
        if planted:
            own.send(torch.ones(_LARGE, _LARGE).numpy())
        own.recv()
        if not planted:
            own.send(torch.ones(_LARGE, _LARGE).numpy())
    process.join()


def _doubles(end: Any, times: int) -> None:
    for _ in range(times):
        end.send((torch.from_numpy(end.recv()) * 2).numpy())


def all_sent_before_any_is_read(planted: bool) -> None:
    """Answers come while requests are still sent."""
    own, process = _piped(_doubles, 6)
    ctrl_c_at_rest(also=(process.pid,))
    for _ in range(6):
        own.send(torch.ones(_LARGE, _LARGE).numpy())
        if not planted:
            own.recv()
    for _ in range(6 * planted):
        own.recv()
    process.join()


def _trains(end: Any, times: int) -> None:
    for _ in range(times):
        end.send(torch.randn(_LARGE, _LARGE).numpy())
    end.recv()


def weights_sent_to_a_process_that_reports(planted: bool) -> None:
    """A process sends gradients before it takes the weights that are sent to it."""
    own, process = _piped(_trains, 2)
    ctrl_c_at_rest(also=(process.pid,))
    weights = torch.randn(_LARGE, _LARGE).numpy()
    if planted:
        own.send(weights)
    for _ in range(2):
        own.recv()
    if not planted:
        own.send(weights)
    process.join()


# items that another thread takes -----------------------------------------------------------------


def _takers(take: Callable[[threading.Condition, list[Any]], Any]) -> None:
    """Two threads, which each item wakes both."""
    condition, items = threading.Condition(), list[Any]()

    def run() -> None:
        with condition:
            item = take(condition, items)
        item + work()

    threads = [start(run) for _ in range(2)]
    for _ in range(2):
        time.sleep(0.3)  # until those that are left wait
        with condition:
            items.append(work())
            condition.notify_all()
    for thread in threads:
        thread.join()


def item_that_the_other_thread_took(planted: bool) -> None:
    """It looks once before it waits; the twin looks again."""

    def take(condition: threading.Condition, items: list[Any]) -> Any:
        if not items:
            condition.wait()
        while not (planted or items):
            condition.wait()
        return items.pop(0)

    _takers(take)


def wait_without_a_look(planted: bool) -> None:
    """It waits, whatever is there; the twin gives a predicate."""

    def take(condition: threading.Condition, items: list[Any]) -> Any:
        if planted:
            condition.wait()
        else:
            condition.wait_for(lambda: items)
        return items.pop()

    _takers(take)


def wait_for_a_while(planted: bool) -> None:
    """It waits for some time at most, and takes then; the twin looks what the wait returned."""

    def take(condition: threading.Condition, items: list[Any]) -> Any:
        condition.wait(timeout=30)
        return items.pop() if planted or items else torch.zeros(())

    _takers(take)


FAULTS = (
    deadlocks(
        "a pipe that both ends fill",
        both_ends_send_first,
        all_sent_before_any_is_read,
        weights_sent_to_a_process_that_reports,
        says="waits for another process",
    )
    + deadlocks(
        "a thread that brought something and has ended",
        notified_before_the_wait,
        queue_without_an_end_mark,
        queue_of_a_loader_that_ended,
        permits_that_are_too_few,
        says="which brought it before, has ended",
    )
    + tuple(
        Fault(
            "an item that another thread took",
            "waiting",
            ("lost_error",),
            form,
            says="another thread had taken",
            slow=form is not item_that_the_other_thread_took,
        )
        for form in (item_that_the_other_thread_took, wait_without_a_look, wait_for_a_while)
    )
)
