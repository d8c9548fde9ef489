"""Starts the recorder's own threads, which leave all signals to the program."""

from __future__ import annotations

import signal
from _thread import start_new_thread  # imported before the hook replaces it
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Blocks all signals in the calling thread; a thread started inside keeps them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # a pending handler of the program may raise here
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(function: Callable[..., object], *arguments: object) -> None:
    """Runs the function in a thread that is invisible to the program and takes no signals.

    A signal that the program blocks in its own threads, to wait for it, would otherwise be
    delivered to this thread and end the process.
    """
    with signals_blocked():
        start_new_thread(function, arguments)
