"""Locks: Lock, RLock, and Condition as a lock."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from ..kinds import SyncKind
from .handovers import Handovers
from .patches import Patches

_ACQUIRE, _RELEASE = SyncKind.lock_acquire, SyncKind.lock_release
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


def _inner(condition: threading.Condition, *args: Any, **keywords: Any) -> Any:
    return vars(condition)["_lock"].acquire(*args, **keywords)


def _acquiring(handovers: Handovers, original: _Method, number: Callable[[Any], int]) -> _Method:
    def acquire(self: Any, *args: Any, **keywords: Any) -> Any:
        if not handovers.concurrent:
            return original(self, *args, **keywords)
        target = number(self)
        if not handovers.is_programs(target):
            return original(self, *args, **keywords)
        if not args and not keywords and original(self, False):
            handovers.note(_ACQUIRE, target)
            return True
        got, start = handovers.wait(_ACQUIRE, target, lambda: original(self, *args, **keywords))
        if got:
            handovers.note(_ACQUIRE, target, start)
        return got

    return acquire


def _releasing(handovers: Handovers, original: _Method, number: Callable[[Any], int]) -> _Method:
    def release(self: Any, *args: Any) -> Any:
        if handovers.concurrent:
            target = number(self)
            if handovers.is_programs(target):
                handovers.note(_RELEASE, target)
        return original(self, *args)

    return release
