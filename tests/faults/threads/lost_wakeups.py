"""Programs whose only thread waits for a thread that has ended, until somebody kills them."""

from __future__ import annotations

import queue
import threading
from typing import Any

from tests.faults.base import ctrl_c_at_rest
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


FAULTS = deadlocks(
    "a thread that brought something and has ended",
    notified_before_the_wait,
    queue_without_an_end_mark,
    permits_that_are_too_few,
    says="which brought it before, has ended",
)
