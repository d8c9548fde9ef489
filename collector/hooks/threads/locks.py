"""Records locks: Lock, RLock, and Condition used as a lock."""

from __future__ import annotations

import _thread
import threading
from typing import Any

from ...format.record_kinds import SyncKind
from ..base import Hook, HookContext
from ..trampolines import LockEnds
from .sync_events import SyncRecorder, Waiting


def _hook(context: HookContext) -> None:
    """Records acquisitions and releases of locks that the program uses."""
    sync, patches = context.get(SyncRecorder), context.patches

    def waits(lock: Any) -> Waiting:
        return sync.waits(SyncKind.lock_acquire, id(lock))

    def waited(lock: Any, waiting: Waiting, got: Any) -> None:
        sync.waited(waiting)
        if got is True and sync.concurrent:
            sync.on_reacquired(lock, waiting.start)

    # Programs acquire locks by the million: a plain lock skips what a reentrant one needs. For a
    # library's lock nothing happens beyond the look-up in `user_locks`.
    for kind, held, acquired, released in (
        (type(_thread.allocate_lock()), sync.held, sync.on_acquired, sync.on_released),
        (type(threading.RLock()), None, sync.on_reacquired, sync.on_rereleased),
    ):
        ends = LockEnds(
            sync.user_locks, held, sync.mark_user_lock, acquired, released, waits, waited
        )
        patches.locks(kind, ends)

    def entered(condition: threading.Condition) -> None:
        """Marks the lock of a program's condition, which `threading` acquires and releases."""
        lock = vars(condition).get("_lock")  # None in no known version of Python
        if lock is not None and id(lock) not in sync.user_locks:
            sync.mark_user_lock(lock, 2)

    patches.ends(threading.Condition, "__enter__", entered, self_alone=True, when_concurrent=True)


HOOK = Hook("order of threads (locks)", _hook)
