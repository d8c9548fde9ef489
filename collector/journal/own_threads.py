"""Threads of the recorder's own, which leave all signals to the program."""

from __future__ import annotations

import signal
from _thread import start_new_thread  # before it is replaced by one that records
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Inside, the calling thread takes no signal; a thread that it starts never does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # a handler of the program may raise as soon as they are blocked
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(function: Callable[..., object], *arguments: object) -> None:
    """Run the function in a thread that neither the program nor its signals know.

    A signal that the program blocks in its threads, to wait for it, would be delivered to this one
    otherwise, and end the process.
    """
    with signals_blocked():
        start_new_thread(function, arguments)
