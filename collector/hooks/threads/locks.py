"""Locks: Lock, RLock, and Condition as a lock."""

from __future__ import annotations

import _thread
import threading
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from ...format.record_kinds import SyncKind
from ..patches import Patches
from .sync_events import Handovers

_Method = Callable[..., Any]


def install(handovers: Handovers) -> Callable[[], None]:
    """Record what the program does with locks, whatever name it knows their types by."""
    patches = Patches()
    lock, rlock = type(_thread.allocate_lock()), type(threading.RLock())
    for kind, acquiring, releasing in (
        (lock, _acquiring, _releasing),
        (rlock, _acquiring_again, _releasing_again),
    ):
        release = releasing(handovers, vars(kind)["release"])
        acquire = acquiring(handovers, vars(kind)["acquire"], release)
        for names, method in (
            (("acquire", "acquire_lock", "__enter__"), acquire),
            (("release", "release_lock", "__exit__"), release),
        ):
            for name in names:
                if name in vars(kind):
                    patches.put(kind, name, method)
    patches.replace(threading.Condition, "__enter__", lambda o: _entering(handovers, o))
    return patches.undo


# Programs take and give locks by the million: what follows spares every call that it can. So what
# is said of a plain lock is written twice, without what one that may be taken again needs.
#
# A signal's handler may raise at any point of what follows. Then the caller takes it that the lock
# was not acquired, and has been released: whoever gives it back would never be called.
def _acquiring(handovers: Handovers, original: _Method, release: _Method) -> _Method:
    programs, becomes = handovers.programs, handovers.becomes_programs
    held, taken = handovers.held, handovers.taken

    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> Any:
        if not handovers.concurrent:
            return original(self, blocking, timeout)
        number = id(self)
        if number not in programs and not becomes(self):
            return original(self, blocking, timeout)
        if blocking is True and timeout == -1 and original(self, False):
            try:
                held[number] = get_ident()
                taken(self)
            except BaseException:
                release(self)
                raise
            return True
        return _waiting(handovers, original, release, self, blocking, timeout)

    return acquire


def _releasing(handovers: Handovers, original: _Method) -> _Method:
    programs, becomes = handovers.programs, handovers.becomes_programs
    held, given = handovers.held, handovers.given

    def release(self: Any, *_: Any) -> Any:
        try:
            if handovers.concurrent:
                number = id(self)
                if number in programs or becomes(self):
                    held.pop(number, None)
                    given(self)
        finally:
            original(self)

    return release


def _acquiring_again(handovers: Handovers, original: _Method, release: _Method) -> _Method:
    programs, becomes = handovers.programs, handovers.becomes_programs
    took = handovers.took

    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> Any:
        if not handovers.concurrent:
            return original(self, blocking, timeout)
        number = id(self)
        if number not in programs and not becomes(self):
            return original(self, blocking, timeout)
        if blocking is True and timeout == -1 and original(self, False):
            try:
                took(self)
            except BaseException:
                release(self)
                raise
            return True
        return _waiting(handovers, original, release, self, blocking, timeout)

    return acquire


def _releasing_again(handovers: Handovers, original: _Method) -> _Method:
    programs, becomes = handovers.programs, handovers.becomes_programs
    gives = handovers.gives

    def release(self: Any, *_: Any) -> Any:
        try:
            if handovers.concurrent:
                number = id(self)
                if number in programs or becomes(self):
                    gives(self)
        finally:
            original(self)

    return release


def _waiting(
    handovers: Handovers, original: _Method, release: _Method, lock: Any, blocking: bool,
    timeout: float,
) -> Any:  # fmt: skip
    got = False

    def take() -> None:
        nonlocal got
        got = original(lock, blocking, timeout)

    try:
        _, start = handovers.wait(SyncKind.lock_acquire, id(lock), take)
        if got:
            handovers.took(lock, start)
    except BaseException:
        if got:
            release(lock)
        raise
    return got


def _entering(handovers: Handovers, original: _Method) -> _Method:
    """Its lock is the program's as well, though `threading` takes and gives it."""
    programs, becomes = handovers.programs, handovers.becomes_programs

    def enter(self: threading.Condition) -> Any:
        if handovers.concurrent:
            lock = vars(self).get("_lock")  # None in no known version of Python
            if lock is not None and id(lock) not in programs:
                becomes(lock)
        return original(self)

    return enter
