"""Locks: Lock, RLock, and Condition as a lock."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from ...format.record_kinds import SyncKind
from ..base import Hook
from ..patches import Patches
from ..trampolines import LockEnds
from .sync_events import Handovers, Waiting


def install(handovers: Handovers) -> Callable[[], None]:
    """Record what the program does with locks, whatever name it knows their types by."""
    patches = Patches()

    def waits(lock: Any) -> Waiting:
        return handovers.waits(SyncKind.lock_acquire, id(lock))

    def waited(lock: Any, waiting: Waiting, got: Any) -> None:
        handovers.waited(waiting)
        if got is True:
            handovers.took(lock, waiting.start)

    # Programs take and give locks by the million: a plain lock is spared what one that may be
    # taken again needs. A library's lock comes no further than `programs`.
    for kind, held, taken, given in (
        (type(_thread.allocate_lock()), handovers.held, handovers.taken, handovers.given),
        (type(threading.RLock()), None, handovers.took, handovers.gives),
    ):
        programs, becomes = handovers.programs, handovers.becomes_programs
        ends = LockEnds(programs, held, becomes, taken, given, waits, waited)
        patches.locks(kind, ends)

    def entered(condition: threading.Condition) -> None:
        """Its lock is the program's as well, though `threading` takes and gives it."""
        lock = vars(condition).get("_lock")  # None in no known version of Python
        if lock is not None and id(lock) not in handovers.programs:
            handovers.becomes_programs(lock, 2)

    patches.ends(threading.Condition, "__enter__", entered, self_alone=True, when_concurrent=True)
    return patches.undo


HOOK = Hook("order of threads (locks)", lambda context: install(context.sync))
