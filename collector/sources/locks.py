"""Locks: Lock, RLock, and Condition as a lock."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from ..kinds import SyncKind
from .handovers import Handovers
from .patches import Patches

_Method = Callable[..., Any]


def install(handovers: Handovers) -> Callable[[], None]:
    """Record what the program does with locks, whatever name it knows their types by."""
    patches = Patches()
    for kind in (type(_thread.allocate_lock()), type(threading.RLock())):
        acquiring = _acquiring(handovers, vars(kind)["acquire"], id)
        for name in ("acquire", "__enter__"):
            patches.put(kind, name, acquiring)
        for name in ("release", "__exit__"):
            patches.replace(kind, name, lambda original: _releasing(handovers, original, id))
    # Its methods `acquire` and `release` are those of the lock inside.
    condition = threading.Condition
    patches.put(condition, "__enter__", _acquiring(handovers, _inner, lock_of))
    patches.replace(condition, "__exit__", lambda o: _releasing(handovers, o, lock_of))
    return patches.undo


def lock_of(condition: threading.Condition) -> int:
    """The number of the lock inside a condition."""
    return id(vars(condition)["_lock"])


def _inner(condition: threading.Condition, blocking: bool = True, timeout: float = -1) -> Any:
    return vars(condition)["_lock"].acquire(blocking, timeout)


# Programs take and give locks by the million: what follows spares every call that it can.
def _acquiring(handovers: Handovers, original: _Method, number: Callable[[Any], int]) -> _Method:
    programs, becomes = handovers.programs, handovers.becomes_programs
    took = handovers.took

    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> Any:
        if not handovers.concurrent:
            return original(self, blocking, timeout)
        target = number(self)
        if target not in programs and not becomes(target):
            return original(self, blocking, timeout)
        if blocking is True and timeout == -1 and original(self, False):
            took(target)
            return True
        got, start = handovers.wait(
            SyncKind.lock_acquire, target, lambda: original(self, blocking, timeout)
        )
        if got:
            took(target, start)
        return got

    return acquire


def _releasing(handovers: Handovers, original: _Method, number: Callable[[Any], int]) -> _Method:
    programs, becomes = handovers.programs, handovers.becomes_programs
    gives = handovers.gives

    def release(self: Any, *args: Any) -> Any:
        if handovers.concurrent:
            target = number(self)
            if target in programs or becomes(target):
                gives(target)
        return original(self, *args)

    return release
