"""What threads wait for: conditions, events, semaphores, barriers; multiprocessing's as well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from multiprocessing import synchronize
from typing import Any

from ...format.record_kinds import SyncKind
from ...recorder.private_names import optional
from ..patches import Patches
from .sync_events import Handovers

_Method = Callable[..., Any]
_ROUNDS = "_lanescope_rounds"


def install(handovers: Handovers) -> Callable[[], None]:
    """Record them by what they mean; what they do with locks inside is their own affair."""
    patches = Patches()

    def replace(owner: type, name: str, make: Callable[[Handovers, _Method], _Method]) -> None:
        patches.replace(owner, name, lambda original: make(handovers, original))

    replace(threading.Condition, "wait", _condition_wait)
    replace(threading.Condition, "notify", _programs(_publishing(SyncKind.condition_notify)))
    replace(threading.Condition, "notify_all", _programs(_publishing(SyncKind.condition_notify)))
    replace(threading.Event, "set", _publishing(SyncKind.event_set))
    replace(threading.Event, "is_set", _programs(_looking(SyncKind.event_wait)))
    replace(threading.Event, "wait", _waiting(SyncKind.event_wait))
    for name in ("acquire", "__enter__"):
        replace(threading.Semaphore, name, _programs(_waiting(SyncKind.semaphore_acquire)))
    for owner in (threading.Semaphore, threading.BoundedSemaphore):
        replace(owner, "release", _programs(_publishing(SyncKind.semaphore_release)))
    replace(threading.Semaphore, "__exit__", _programs(_publishing(SyncKind.semaphore_release)))
    replace(threading.Barrier, "wait", _barrier_wait)
    patches.replace_private(
        threading.Barrier, "_release", lambda o: _barrier_action(handovers, o),
        "order by the actions of barriers",
    )  # fmt: skip
    # The locks and conditions of multiprocessing are semaphores underneath.
    theirs = optional(
        synchronize.__name__, "_multiprocessing.SemLock", "order by locks of multiprocessing"
    )
    if theirs is not None:
        for name in ("acquire", "__enter__"):
            replace(theirs, name, _programs(_waiting(SyncKind.semaphore_acquire)))
        for name in ("release", "__exit__"):
            replace(theirs, name, _programs(_publishing(SyncKind.semaphore_release)))
    replace(synchronize.Event, "set", _publishing(SyncKind.event_set))
    replace(synchronize.Event, "is_set", _programs(_looking(SyncKind.event_wait)))
    replace(synchronize.Event, "wait", _waiting(SyncKind.event_wait))
    return patches.undo


def _programs(make: Callable[[Handovers, _Method], _Method]) -> Callable[..., _Method]:
    """Recorded where the program itself calls; a library's own bookkeeping is not."""

    def limited(handovers: Handovers, original: _Method) -> _Method:
        recorded = make(handovers, original)

        def call(self: Any, *args: Any, **keywords: Any) -> Any:
            if handovers.concurrent and handovers.from_program():
                return recorded(self, *args, **keywords)
            return original(self, *args, **keywords)

        return call

    return limited


def _publishing(kind: SyncKind) -> Callable[[Handovers, _Method], _Method]:
    def make(handovers: Handovers, original: _Method) -> _Method:
        def publish(self: Any, *args: Any, **keywords: Any) -> Any:
            if handovers.concurrent:
                handovers.note(kind, handovers.key(self))
            return original(self, *args, **keywords)

        return publish

    return make


def _waiting(kind: SyncKind) -> Callable[[Handovers, _Method], _Method]:
    def make(handovers: Handovers, original: _Method) -> _Method:
        def wait(self: Any, *args: Any, **keywords: Any) -> Any:
            if not handovers.concurrent:
                return original(self, *args, **keywords)
            target = handovers.key(self)
            got, start = handovers.wait(kind, target, lambda: original(self, *args, **keywords))
            if got:
                handovers.note(kind, target, start)
            return got

        return wait

    return make


def _looking(kind: SyncKind) -> Callable[[Handovers, _Method], _Method]:
    """A look at something that another thread may have published by then."""

    def make(handovers: Handovers, original: _Method) -> _Method:
        def look(self: Any) -> Any:
            seen = original(self)
            if seen and handovers.concurrent:
                handovers.note(kind, handovers.key(self))
            return seen

        return look

    return make


def _condition_wait(handovers: Handovers, original: _Method) -> _Method:
    in_between = threading.Condition.wait_for.__code__

    def wait(self: threading.Condition, *args: Any, **keywords: Any) -> Any:
        called_by = 2 if sys._getframe(1).f_code is in_between else 1
        if not handovers.concurrent or not handovers.from_program(called_by + 1):
            return original(self, *args, **keywords)
        lock, target = vars(self).get("_lock"), handovers.key(self)
        handovers.gives(lock)
        woken, start = handovers.wait(
            SyncKind.condition_wait, target, lambda: original(self, *args, **keywords)
        )
        if woken:
            handovers.note(SyncKind.condition_wait, target, start)
        handovers.took(lock)
        return woken

    return wait


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


def _barrier_wait(handovers: Handovers, original: _Method) -> _Method:
    def wait(self: threading.Barrier, *args: Any, **keywords: Any) -> Any:
        own: _Rounds = vars(self).get(_ROUNDS) or vars(self).setdefault(_ROUNDS, _Rounds(self))
        number = own.enter()
        if not handovers.concurrent:
            return original(self, *args, **keywords)
        every = handovers.key(self)
        this = handovers.part(every, number)
        # To both, for it shows only at the end which of them may be received.
        handovers.note(SyncKind.barrier_enter, every)
        handovers.note(SyncKind.barrier_enter, this)
        try:
            index, start = handovers.wait(
                SyncKind.barrier_leave, every, lambda: original(self, *args, **keywords)
            )
        except BaseException:
            own.lost = True
            raise
        handovers.note(SyncKind.barrier_leave, this if own.known(self) else every, start)
        return index

    return wait


def _barrier_action(handovers: Handovers, original: _Method) -> _Method:
    """The last to come runs the barrier's action: after all have come, before any goes on."""

    def release(self: threading.Barrier) -> None:
        own: _Rounds | None = vars(self).get(_ROUNDS)
        if own is None or vars(self).get("_action") is None or not handovers.concurrent:
            original(self)
            return
        every = handovers.key(self)
        this = handovers.part(every, own.number())
        handovers.note(SyncKind.barrier_leave, this if own.known(self) else every)
        original(self)  # the others wake up, but cannot go on before this thread lets them
        handovers.note(SyncKind.barrier_enter, every)
        handovers.note(SyncKind.barrier_enter, this)

    return release
