"""What threads wait for: conditions, events, semaphores, barriers; multiprocessing's as well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from multiprocessing import synchronize
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..base import Hook
from ..patches import Patches, caller
from .sync_events import Handovers, Waiting

_ROUNDS = "_lanescope_rounds"


def install(handovers: Handovers) -> Callable[[], None]:
    """Record them by what they mean; what they do with locks inside is their own affair."""
    patches = Patches()
    hooks = _Hooks(handovers, patches)
    _condition_wait(handovers, patches)
    for name in ("notify", "notify_all"):
        hooks.publishes(threading.Condition, name, SyncKind.condition_notify, programs=True)
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
            hooks.waits(kind, name, SyncKind.semaphore_acquire, programs=True)
        for name in ("release", "__exit__"):
            hooks.publishes(kind, name, SyncKind.semaphore_release, programs=True)
    _barrier_wait(handovers, patches)
    _barrier_action(handovers, patches)
    return patches.undo


class _Hooks:
    """`programs`: recorded where the program itself calls; a library's own bookkeeping is not."""

    def __init__(self, handovers: Handovers, patches: Patches) -> None:
        self._handovers = handovers
        self._patches = patches

    def publishes(self, owner: type, name: str, kind: SyncKind, *, programs: bool = False) -> None:
        handovers = self._handovers

        def begin(own: Any) -> None:
            if not programs or handovers.from_program(sys._getframe(1)):
                handovers.note(kind, handovers.key(own))

        self._patches.ends(owner, name, begin, self_alone=True, when_concurrent=True)

    def waits(self, owner: type, name: str, kind: SyncKind, *, programs: bool = False) -> None:
        handovers = self._handovers

        def begin(own: Any) -> Waiting | None:
            if programs and not handovers.from_program(sys._getframe(1)):
                return None
            return handovers.waits(kind, handovers.key(own))

        def done(waiting: Waiting, got: Any) -> None:
            handovers.waited(waiting)
            if got:
                handovers.note(kind, waiting.target, waiting.start)

        def raised(waiting: Waiting, _: BaseException) -> None:
            handovers.waited(waiting)

        self._patches.ends(owner, name, begin, done, raised, self_alone=True, when_concurrent=True)

    def looks(self, owner: type, name: str, kind: SyncKind) -> None:
        """A look at something that another thread may have published by then."""
        handovers = self._handovers

        def begin(own: Any) -> Any:
            return own if handovers.from_program(sys._getframe(1)) else None

        def done(own: Any, seen: Any) -> None:
            if seen:
                handovers.note(kind, handovers.key(own))

        self._patches.ends(owner, name, begin, done, self_alone=True, when_concurrent=True)


def _condition_wait(handovers: Handovers, patches: Patches) -> None:
    in_between = threading.Condition.wait_for.__code__

    def begin(condition: threading.Condition) -> tuple[Any, Waiting] | None:
        frame = caller()
        if frame is not None and frame.f_code is in_between:
            frame = frame.f_back
        if not handovers.from_program(frame):
            return None
        lock = vars(condition).get("_lock")
        handovers.gives(lock)
        return lock, handovers.waits(SyncKind.condition_wait, handovers.key(condition))

    def done(began: tuple[Any, Waiting], woken: Any) -> None:
        lock, waiting = began
        handovers.waited(waiting)
        if woken:
            handovers.note(SyncKind.condition_wait, waiting.target, waiting.start)
        handovers.took(lock)

    def raised(began: tuple[Any, Waiting], _: BaseException) -> None:
        handovers.waited(began[1])

    patches.ends(
        threading.Condition, "wait", begin, done, raised, self_alone=True, when_concurrent=True
    )


class _Rounds:
    """Which round of a barrier a thread is in, as long as that is beyond doubt.

    A thread that is slow to come out must not know what others did before they went in again. With
    no more threads than parties, each takes part in every round, so that its own count numbers
    them; with more, or once the barrier was broken, nobody can tell.
    """

    def __init__(self, barrier: threading.Barrier) -> None:
        self.counts: dict[int, int] = {}  # by thread
        self.lost = barrier.n_waiting > 0  # they went in before anybody counted

    def enter(self) -> int:
        own = threading.get_ident()
        self.counts[own] = number = self.counts.get(own, 0) + 1
        return number

    def number(self) -> int:
        """The round that the calling thread is in."""
        return self.counts.get(threading.get_ident(), 0)

    def known(self, barrier: threading.Barrier) -> bool:
        return not self.lost and len(self.counts) <= barrier.parties


def _barrier_wait(handovers: Handovers, patches: Patches) -> None:
    def begin(barrier: threading.Barrier) -> tuple[threading.Barrier, _Rounds, int, Waiting] | None:
        own: _Rounds = vars(barrier).get(_ROUNDS) or vars(barrier).setdefault(
            _ROUNDS, _Rounds(barrier)
        )
        number = own.enter()
        if not handovers.concurrent:
            return None
        every = handovers.key(barrier)
        this = handovers.part(every, number)
        # To both, for it shows only at the end which of them may be received.
        handovers.note(SyncKind.barrier_enter, every)
        handovers.note(SyncKind.barrier_enter, this)
        return barrier, own, this, handovers.waits(SyncKind.barrier_leave, every)

    def done(began: tuple[threading.Barrier, _Rounds, int, Waiting], _: Any) -> None:
        barrier, own, this, waiting = began
        handovers.waited(waiting)
        left = this if own.known(barrier) else waiting.target
        handovers.note(SyncKind.barrier_leave, left, waiting.start)

    def raised(began: tuple[threading.Barrier, _Rounds, int, Waiting], _: BaseException) -> None:
        began[1].lost = True
        handovers.waited(began[3])

    patches.ends(threading.Barrier, "wait", begin, done, raised, self_alone=True)


def _barrier_action(handovers: Handovers, patches: Patches) -> None:
    """The last to come runs the barrier's action: after all have come, before any goes on."""

    def begin(barrier: threading.Barrier) -> tuple[int, int] | None:
        own: _Rounds | None = vars(barrier).get(_ROUNDS)
        if own is None or vars(barrier).get("_action") is None:
            return None
        every = handovers.key(barrier)
        this = handovers.part(every, own.number())
        handovers.note(SyncKind.barrier_leave, this if own.known(barrier) else every)
        return every, this

    def done(both: tuple[int, int], _: Any) -> None:
        # The others wake up, but cannot go on before this thread lets them.
        for one in both:
            handovers.note(SyncKind.barrier_enter, one)

    patches.ends(
        threading.Barrier,
        "_release",
        begin,
        done,
        self_alone=True,
        when_concurrent=True,
        lost="order by the actions of barriers",
    )


HOOK = Hook("order of threads (conditions)", lambda context: install(context.sync))
