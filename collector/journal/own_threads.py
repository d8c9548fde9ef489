"""Starts the recorder's own threads, which leave all signals to the program."""

from __future__ import annotations

import gc
import os
import signal
from _thread import get_ident, start_new_thread  # imported before the hook replaces it
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_running: dict[int, int] = {}
"""Ident of each of these threads -> process: a forked child may give their idents to others."""


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
        start_new_thread(_run, (function, *arguments))


_pauses = 0
"""Of the collection of garbage, which goes on behind the last of them."""


def pause_collection() -> bool:
    """Keeps garbage of the program uncollected while a thread of the recorder works, which is
    brief; returns what `resume_collection` is to get.

    So a destructor of the program runs in a thread of the program: in any other, one of Tk's
    objects ends the process. No context manager, which is an object at whose making Python may
    collect.
    """
    global _pauses
    collects = _pauses > 0 or gc.isenabled()
    _pauses += collects
    gc.disable()
    return collects


def resume_collection(collects: bool) -> None:
    """Ends `pause_collection`."""
    global _pauses
    _pauses -= collects
    if collects and not _pauses:
        gc.enable()


def _forked() -> None:
    """Ends all of them in a forked child, which has none of these threads."""
    global _pauses
    if _pauses:
        _pauses = 0
        gc.enable()


os.register_at_fork(after_in_child=_forked)


def is_own(ident: int) -> bool:
    """Returns True for a thread of the recorder that runs in this process."""
    return _running.get(ident) == os.getpid()


def _run(*call: Any) -> None:
    _running[get_ident()] = os.getpid()
    try:
        call[0](*call[1:])
    finally:
        del _running[get_ident()]
