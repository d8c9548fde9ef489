"""Threads that wait for ever, each in a way of its own, and some that only wait for those."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Barrier, Event, Lock

import torch


def start(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, name=function.__name__, daemon=True)
    thread.start()
    return thread


def in_opposite_order() -> None:
    one, other, both = Lock(), Lock(), Barrier(2)

    def forth() -> None:
        with one:
            both.wait()
            with other:  # fault: forth
                pass

    def back() -> None:
        with other:
            both.wait()
            with one:  # fault: back
                pass

    start(forth)
    start(back)


def taken_twice() -> None:
    lock = Lock()
    with lock, lock:  # fault: taken_twice
        pass


def stuck() -> None:
    weight = torch.ones(3, requires_grad=True)
    hidden = weight.exp()
    hidden.register_hook(lambda _: Event().wait())  # fault: stuck
    hidden.sum().backward()


def joined_under_a_lock() -> None:
    lock = Lock()

    def worker() -> None:
        with lock:  # fault: worker
            pass

    with lock:
        start(worker).join()  # fault: joined


def waiting() -> None:
    """None of these waits for a thread that waits for it."""
    lock, held = threading.RLock(), Event()

    def holder() -> None:
        with lock, lock:
            held.set()
            Event().wait()

    def patient() -> None:
        with lock:
            pass

    start(holder)
    held.wait()
    waiter = start(patient)
    start(waiter.join)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.ones(3).sum()
    waiting()
    in_opposite_order()
    start(taken_twice)
    start(stuck)
    joined_under_a_lock()
