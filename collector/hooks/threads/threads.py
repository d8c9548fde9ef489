"""Threads: their start, begin, end and join, and the way for an engine into each new one."""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...format.record_kinds import SyncKind
from ...journal import clock
from ...journal.process_journals import MAIN_ORDINAL
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Changed, Patches, around
from ..stacks import Stacks
from .contexts import NOTHING, Contexts, Inherited
from .sync_events import Handovers

_MOST_ENDED = 100_000
_OWN = __name__.partition(".hooks.")[0]


class Start(NamedTuple):
    """How a thread was started."""

    ordinal: int
    parent: int  # its ordinal
    left: Inherited | None


class Threads:
    """Follows `threading.Thread` and `_thread.start_new_thread`."""

    def __init__(
        self,
        recorder: Recorder,
        stacks: Stacks | None,
        handovers: Handovers,
        contexts: Contexts,
        inside: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._recorder = recorder
        self._stacks = stacks
        self._handovers = handovers
        self._contexts = contexts
        self._inside = inside
        self._starts: weakref.WeakKeyDictionary[threading.Thread, Start] = (
            weakref.WeakKeyDictionary()
        )
        self._starts[threading.main_thread()] = Start(MAIN_ORDINAL, MAIN_ORDINAL, None)
        self._ended: list[int] = []  # ordinals of those that were no daemons
        self._looking: set[int] = set()  # idents of threads
        self._seen: dict[int, int] = {}  # thread's identity -> how many of them it knows to be over

    def started(self, thread: threading.Thread) -> None:
        """The calling thread is about to start `thread`."""
        self._starts[thread] = self.starting()

    def starting(self) -> Start:
        """The calling thread is about to start one."""
        recorder = self._recorder
        self._handovers.second_thread()
        ordinal = recorder.reserve_thread()
        instant = clock.now()
        recorder.sync(SyncKind.thread_start, instant, instant, ordinal, self._stack())
        return Start(ordinal, recorder.thread().ordinal, self._contexts.left("thread"))

    def joining(self, thread: threading.Thread, start: int) -> bool:
        """The calling thread waits for `thread` from now on. Whether that was noted."""
        recorder, known = self._recorder, self._starts.get(thread)
        if known is None or not recorder.active or not hasattr(recorder.local, "state"):
            return False
        # Of an open event only its target is kept: decoding takes that of a join for its peer.
        recorder.open_sync(SyncKind.thread_join, start, known.ordinal + 1, self._stack())
        return True

    def joined(self, thread: threading.Thread, start: int, alive: bool) -> None:
        """The calling thread waited for `thread` since `start`, and knows whether it has ended."""
        known = self._starts.get(thread)
        if known is not None and not alive:
            end = clock.now()
            self._recorder.sync(SyncKind.thread_join, start, end, known.ordinal, self._stack())

    def waited(self) -> None:
        """It waits no more."""
        self._recorder.close_sync()

    def is_alive(self, thread: threading.Thread) -> bool:
        """Whether a thread has not ended, as Python has it; not recorded as a look of its own."""
        self._looking.add(threading.get_ident())
        try:
            return threading.Thread.is_alive(thread)
        finally:
            self._looking.discard(threading.get_ident())

    def looks(self) -> bool:
        """Whether the calling thread is in `is_alive` here."""
        return threading.get_ident() in self._looking

    def main_ends(self) -> None:
        """The main thread has run to the program's end; others may go on."""
        if self._handovers.concurrent and hasattr(self._recorder.local, "state"):
            instant = clock.now()
            self._recorder.sync(SyncKind.thread_end, instant, instant)

    def saw_ends(self) -> None:
        """The calling thread knows now that those are over that Python does not count any more."""
        me, instant = threading.get_ident(), clock.now()
        known, count = self._seen.get(me, 0), len(self._ended)
        if known < count and hasattr(self._recorder.local, "state"):
            self._seen[me] = count
            for ordinal in self._ended[known:count]:
                self._recorder.sync(SyncKind.thread_join, instant, instant, ordinal)

    def forked(self) -> None:
        """In a forked child: the parent's threads are not there."""
        self._ended.clear()
        self._seen.clear()

    @contextlib.contextmanager
    def running(self, start: Start | None, thread: threading.Thread | None) -> Iterator[None]:
        """Around everything a started thread does; `thread`: if it is one of `threading`."""
        recorder = self._recorder
        inside: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        try:
            recorder.enter_thread(start.ordinal if start else None, thread, started=True)
            instant = clock.now()
            recorder.sync(SyncKind.thread_begin, instant, instant, start.parent if start else None)
            self._contexts.enter(start.left if start else None)
            inside = self._inside()
        except Exception as error:
            recorder.failed(error)
        try:
            with inside:
                yield
        finally:
            try:
                self._contexts.leave(NOTHING)
                instant = clock.now()
                recorder.sync(SyncKind.thread_end, instant, instant)
                self._seen.pop(threading.get_ident(), None)
                if start and thread and not thread.daemon and len(self._ended) < _MOST_ENDED:
                    self._ended.append(start.ordinal)
                recorder.leave_thread()
            except Exception as error:
                recorder.failed(error)

    def taken(self, thread: threading.Thread) -> Start | None:
        """How `thread`, which is the calling one, was started; what it was left is its own now."""
        start = self._starts.get(thread)
        if start is not None:
            self._starts[thread] = start._replace(left=None)
        return start

    def _stack(self) -> int:
        return self._stacks.capture() if self._stacks else 0


def install(
    recorder: Recorder,
    stacks: Stacks | None,
    handovers: Handovers,
    contexts: Contexts,
    inside: Callable[[], contextlib.AbstractContextManager[None]],
) -> Callable[[], None]:
    """Record thread events; `inside` is entered in every thread that starts from now on."""
    threads = Threads(recorder, stacks, handovers, contexts, inside)
    patches = Patches()
    _hook_thread(patches, threads)
    _hook_module(patches, threads, handovers)
    os.register_at_fork(after_in_child=threads.forked)
    return patches.undo


def _hook_thread(patches: Patches, threads: Threads) -> None:
    """The methods of `threading.Thread`."""
    kind = threading.Thread

    def joins(thread: threading.Thread) -> tuple[threading.Thread, int, bool]:
        begun = clock.now()
        return thread, begun, threads.joining(thread, begun)

    def stops(began: tuple[threading.Thread, int, bool], _: BaseException | None) -> None:
        if began[2]:
            threads.waited()

    def joined(began: tuple[threading.Thread, int, bool], _: Any) -> None:
        stops(began, None)
        thread, begun = began[:2]
        threads.joined(thread, begun, threads.is_alive(thread))

    def looks(thread: threading.Thread) -> threading.Thread | None:
        return None if threads.looks() else thread

    def looked(thread: threading.Thread, alive: Any) -> None:
        # To see that a thread has ended is as good as to wait for it.
        threads.joined(thread, clock.now(), alive)

    def begins(thread: threading.Thread) -> contextlib.AbstractContextManager[None]:
        return entered(threads.running(threads.taken(thread), thread))

    patches.ends(kind, "start", threads.started, self_alone=True)
    patches.ends(kind, "join", joins, joined, stops, self_alone=True)
    patches.ends(kind, "is_alive", looks, looked, self_alone=True)
    patches.ends(
        kind,
        "_bootstrap_inner",
        begins,
        ended,
        ended,
        self_alone=True,
        lost="starts and ends of threads",
    )


def _hook_module(patches: Patches, threads: Threads, handovers: Handovers) -> None:
    """The functions of `threading` and `_thread`."""

    def starts(*args: Any, **keywords: Any) -> Changed | None:
        if not args or not callable(args[0]) or keywords or _is_known(args[0]):
            return None
        start = threads.starting()
        run = around(args[0], lambda: entered(threads.running(start, None)), left, thread=True)
        return Changed(None, (run, *args[1:]))

    def counts() -> bool | None:
        return handovers.from_program(sys._getframe(1)) or None

    def counted(_: Any, __: Any) -> None:
        threads.saw_ends()

    def main_ends() -> bool:
        threads.main_ends()
        return True

    patches.ends(_thread, "start_new_thread", starts)
    patches.ends(
        threading, "_shutdown", main_ends, counted, lost="threads that outlive the main one"
    )
    for name in ("active_count", "enumerate"):
        patches.ends(threading, name, counts, counted, when_concurrent=True)


def _is_known(function: Callable[..., Any]) -> bool:
    """Whether a thread begins in `threading`, where it is seen, or is the recorder's."""
    own = isinstance(getattr(function, "__self__", None), threading.Thread)
    module = getattr(function, "__module__", None) or ""
    return (own and function.__name__ == "_bootstrap") or module.startswith(_OWN)


def entered(
    context: contextlib.AbstractContextManager[None],
) -> contextlib.AbstractContextManager[None]:
    """Enters a context, and gives it back to be left by `left`."""
    context.__enter__()
    return context


def left(context: contextlib.AbstractContextManager[None]) -> None:
    """Leaves it."""
    context.__exit__(None, None, None)


def ended(context: contextlib.AbstractContextManager[None], _: Any) -> None:
    """The same where a result or an exception is told as well."""
    context.__exit__(None, None, None)


def _hook(context: HookContext) -> Undo:
    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        with context.enter_engine(), context.validators.enter():
            yield

    if threading.active_count() > 1:
        context.sync.second_thread()
    stacks = context.collective_stacks
    return install(context.recorder, stacks, context.sync, context.contexts, inside)


HOOK = Hook("threads", _hook)
