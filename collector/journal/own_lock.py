"""Locks of the recorder, which its owner may take again: a signal's handler of the program, or a
destructor that a garbage collection runs, may come back to the recorder while it has one."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_all: weakref.WeakSet[Any] = weakref.WeakSet()


def own_lock() -> threading.RLock:
    """Returns a lock. In a forked child no thread of the parent has it."""
    lock = threading.RLock()
    _all.add(lock)
    return lock


def _forked() -> None:
    for lock in list(_all):
        if not lock._is_owned():  # by the only thread of the child
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_forked)
