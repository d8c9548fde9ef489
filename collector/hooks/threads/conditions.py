"""Records conditions, events, semaphores and barriers, also those of multiprocessing."""

from __future__ import annotations

import sys
import threading
from multiprocessing import synchronize
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..base import Hook, HookContext
from ..patches import Patches, caller
from .sync_events import SyncRecorder, Waiting

_ROUNDS = "_lanescope_rounds"


def _hook(context: HookContext) -> None:
    """Records their meaning, not the locks that they use inside."""
    sync, patches = context.get(SyncRecorder), context.patches
    hooks = _Hooks(sync, patches)
    _condition_wait(sync, patches)
    for name in ("notify", "notify_all"):
        hooks.publishes(threading.Condition, name, SyncKind.condition_notify, user_only=True)
    for kind in (threading.Event, synchronize.Event):
        hooks.publishes(kind, "set", SyncKind.event_set)
        hooks.looks(kind, "is_set", SyncKind.event_wait)
        hooks.waits(kind, "wait", SyncKind.event_wait)
    # The locks and conditions of multiprocessing are semaphores underneath.
    theirs = optional(
        synchronize.__name__, "_multiprocessing.SemLock", "order by locks of multiprocessing"
    )
    for kind in (threading.Semaphore, threading.BoundedSemaphore, *([theirs] if theirs else ())):
        for name in ("acquire", "__enter__"):
            hooks.waits(kind, name, SyncKind.semaphore_acquire, user_only=True)
        for name in ("release", "__exit__"):
            hooks.publishes(kind, name, SyncKind.semaphore_release, user_only=True)
    _barrier_wait(sync, patches)
    _barrier_action(sync, patches)


class _Hooks:
    """`user_only`: records calls of the program itself, not the bookkeeping of libraries."""

    def __init__(self, sync: SyncRecorder, patches: Patches) -> None:
        self._sync = sync
        self._patches = patches

    def publishes(self, owner: type, name: str, kind: SyncKind, *, user_only: bool = False) -> None:
        sync = self._sync

        def begin(own: Any) -> None:
            if not user_only or sync.from_program(sys._getframe(1)):
                sync.note(kind, sync.key(own))

        self._patches.ends(owner, name, begin, self_alone=True, when_concurrent=True)

    def waits(self, owner: type, name: str, kind: SyncKind, *, user_only: bool = False) -> None:
        sync = self._sync

        def begin(own: Any) -> Waiting | None:
            if user_only and not sync.from_program(sys._getframe(1)):
                return None
            return sync.waits(kind, sync.key(own))

        def done(waiting: Waiting, got: Any) -> None:
            sync.waited(waiting)
            if got:
                sync.note(kind, waiting.target, waiting.start)

        def raised(waiting: Waiting, _: BaseException) -> None:
            sync.waited(waiting)

        self._patches.ends(owner, name, begin, done, raised, self_alone=True, when_concurrent=True)

    def looks(self, owner: type, name: str, kind: SyncKind) -> None:
        """Hooks a query of a state that another thread may have published."""
        sync = self._sync

        def begin(own: Any) -> Any:
            return own if sync.from_program(sys._getframe(1)) else None

        def done(own: Any, seen: Any) -> None:
            if seen:
                sync.note(kind, sync.key(own))

        self._patches.ends(owner, name, begin, done, self_alone=True, when_concurrent=True)


def _condition_wait(sync: SyncRecorder, patches: Patches) -> None:
    in_between = threading.Condition.wait_for.__code__

    def begin(condition: threading.Condition) -> tuple[Any, Waiting] | None:
        frame = caller()
        if frame is not None and frame.f_code is in_between:
            frame = frame.f_back
        if not sync.from_program(frame):
            return None
        lock = vars(condition).get("_lock")
        sync.on_rereleased(lock)
        return lock, sync.waits(SyncKind.condition_wait, sync.key(condition))

    def done(began: tuple[Any, Waiting], woken: Any) -> None:
        lock, waiting = began
        sync.waited(waiting)
        if woken:
            sync.note(SyncKind.condition_wait, waiting.target, waiting.start)
        sync.on_reacquired(lock)

    def raised(began: tuple[Any, Waiting], _: BaseException) -> None:
        sync.waited(began[1])

    patches.ends(
        threading.Condition, "wait", begin, done, raised, self_alone=True, when_concurrent=True
    )


class _Rounds:
    """Counts in which round of a barrier each thread is, as long as that is certain.

    A thread that leaves late must not receive what others did before they entered the next round.
    With no more threads than parties, each thread takes part in every round, so its own count
    numbers them. With more threads, or once the barrier was broken, the round is unknown.
    """

    def __init__(self, barrier: threading.Barrier) -> None:
        self.counts: dict[int, int] = {}  # by thread
        self.lost = barrier.n_waiting > 0  # these entered before counting began

    def enter(self) -> int:
        own = threading.get_ident()
        self.counts[own] = number = self.counts.get(own, 0) + 1
        return number

    def number(self) -> int:
        """Returns the round of the calling thread."""
        return self.counts.get(threading.get_ident(), 0)

    def known(self, barrier: threading.Barrier) -> bool:
        return not self.lost and len(self.counts) <= barrier.parties


def _barrier_wait(sync: SyncRecorder, patches: Patches) -> None:
    def begin(barrier: threading.Barrier) -> tuple[threading.Barrier, _Rounds, int, Waiting] | None:
        own: _Rounds = vars(barrier).get(_ROUNDS) or vars(barrier).setdefault(
            _ROUNDS, _Rounds(barrier)
        )
        number = own.enter()
        if not sync.concurrent:
            return None
        every = sync.key(barrier)
        this = sync.part(every, number)
        # To both, for it shows only at the end which of them may be received.
        sync.note(SyncKind.barrier_enter, every)
        sync.note(SyncKind.barrier_enter, this)
        return barrier, own, this, sync.waits(SyncKind.barrier_leave, every)

    def done(began: tuple[threading.Barrier, _Rounds, int, Waiting], _: Any) -> None:
        barrier, own, this, waiting = began
        sync.waited(waiting)
        left = this if own.known(barrier) else waiting.target
        sync.note(SyncKind.barrier_leave, left, waiting.start)

    def raised(began: tuple[threading.Barrier, _Rounds, int, Waiting], _: BaseException) -> None:
        began[1].lost = True
        sync.waited(began[3])

    patches.ends(threading.Barrier, "wait", begin, done, raised, self_alone=True)


def _barrier_action(sync: SyncRecorder, patches: Patches) -> None:
    """Hooks the barrier's action: the last thread runs it before any thread goes on."""

    def begin(barrier: threading.Barrier) -> tuple[int, int] | None:
        own: _Rounds | None = vars(barrier).get(_ROUNDS)
        if own is None or vars(barrier).get("_action") is None:
            return None
        every = sync.key(barrier)
        this = sync.part(every, own.number())
        sync.note(SyncKind.barrier_leave, this if own.known(barrier) else every)
        return every, this

    def done(both: tuple[int, int], _: Any) -> None:
        # The others wake up, but this thread has to let them go on.
        for one in both:
            sync.note(SyncKind.barrier_enter, one)

    patches.ends(
        threading.Barrier,
        "_release",
        begin,
        done,
        self_alone=True,
        when_concurrent=True,
        lost="order by the actions of barriers",
    )


HOOK = Hook("order of threads (conditions)", _hook)
