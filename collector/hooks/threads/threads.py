"""Records start, begin, end and join of threads, and lets an engine enter each new one."""

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
from ..base import Hook, HookContext
from ..patches import ChangedArguments, Patches, around
from ..stacks import Stacks
from ..validators import Validators
from .contexts import NOTHING, Contexts, Inherited
from .sync_events import SyncRecorder

_MAX_ENDED = 100_000
_OWN = __name__.partition(".hooks.")[0]


class _Start(NamedTuple):
    """How a thread was started."""

    ordinal: int
    parent: int  # its ordinal
    inherited: Inherited | None


class Threads:
    """Follows `threading.Thread` and `_thread.start_new_thread`."""

    def __init__(
        self,
        recorder: Recorder,
        stacks: Stacks | None,
        sync: SyncRecorder,
        contexts: Contexts,
        inside: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._recorder = recorder
        self._stacks = stacks
        self._sync = sync
        self._contexts = contexts
        self._inside = inside
        self._starts: weakref.WeakKeyDictionary[threading.Thread, _Start] = (
            weakref.WeakKeyDictionary()
        )
        self._starts[threading.main_thread()] = _Start(MAIN_ORDINAL, MAIN_ORDINAL, None)
        self._ended: list[int] = []  # ordinals of ended threads that were not daemons
        self._looking: set[int] = set()  # idents of threads
        self._seen: dict[int, int] = {}  # ident -> how many of `_ended` it knows about

    def started(self, thread: threading.Thread) -> None:
        """Records that the calling thread is about to start `thread`."""
        self._starts[thread] = self.starting()

    def starting(self) -> _Start:
        """Records that the calling thread is about to start a thread."""
        recorder = self._recorder
        self._sync.second_thread()
        ordinal = recorder.reserve_thread()
        instant = clock.now()
        recorder.sync(SyncKind.thread_start, instant, instant, ordinal, self._stack())
        return _Start(ordinal, recorder.thread().ordinal, self._contexts.left("thread"))

    def joining(self, thread: threading.Thread, start: int) -> bool:
        """Opens a wait for `thread`; returns whether it was recorded."""
        recorder, known = self._recorder, self._starts.get(thread)
        if known is None or not recorder.ordering or not hasattr(recorder.local, "state"):
            return False
        # An open event keeps only its target; for a join, decoding reads the peer from it.
        recorder.open_sync(SyncKind.thread_join, start, known.ordinal + 1, self._stack())
        return True

    def joined(self, thread: threading.Thread, start: int, alive: bool) -> None:
        """Records a join of `thread` since `start` (ns), if the thread has ended."""
        known = self._starts.get(thread)
        if known is not None and not alive:
            end = clock.now()
            self._recorder.sync(SyncKind.thread_join, start, end, known.ordinal, self._stack())

    def waited(self) -> None:
        """Closes a wait."""
        self._recorder.close_sync()

    def is_alive(self, thread: threading.Thread) -> bool:
        """Returns `thread.is_alive()` without recording the query."""
        self._looking.add(threading.get_ident())
        try:
            return threading.Thread.is_alive(thread)
        finally:
            self._looking.discard(threading.get_ident())

    def looks(self) -> bool:
        """Returns whether the calling thread is in `is_alive` of this class."""
        return threading.get_ident() in self._looking

    def main_ends(self) -> None:
        """Records that the main thread has reached the program's end; others may go on."""
        if self._sync.concurrent and hasattr(self._recorder.local, "state"):
            instant = clock.now()
            self._recorder.sync(SyncKind.thread_end, instant, instant)

    def saw_ends(self) -> None:
        """Records that the calling thread saw which threads Python no longer counts."""
        me, instant = threading.get_ident(), clock.now()
        known, count = self._seen.get(me, 0), len(self._ended)
        if known < count and hasattr(self._recorder.local, "state"):
            self._seen[me] = count
            for ordinal in self._ended[known:count]:
                self._recorder.sync(SyncKind.thread_join, instant, instant, ordinal)

    def forked(self) -> None:
        """Forgets the parent's threads in a forked child, but for their locks."""
        self._ended.clear()
        self._seen.clear()
        self._sync.forked()

    @contextlib.contextmanager
    def running(self, start: _Start | None, thread: threading.Thread | None) -> Iterator[None]:
        """Surrounds everything that a started thread does; `thread`: None for one of `_thread`."""
        recorder = self._recorder
        inside: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        try:
            recorder.enter_thread(start.ordinal if start else None, thread, started=True)
            instant = clock.now()
            recorder.sync(SyncKind.thread_begin, instant, instant, start.parent if start else None)
            self._contexts.enter(start.inherited if start else None)
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
                if start and thread and not thread.daemon and len(self._ended) < _MAX_ENDED:
                    self._ended.append(start.ordinal)
                recorder.leave_thread()
            except Exception as error:
                recorder.failed(error)

    def claim(self, thread: threading.Thread) -> _Start | None:
        """Returns how the calling thread was started, and drops what it inherits."""
        start = self._starts.get(thread)
        if start is not None:
            self._starts[thread] = start._replace(inherited=None)
        return start

    def _stack(self) -> int:
        return self._stacks.capture() if self._stacks else 0


def _hook_thread(patches: Patches, threads: Threads) -> None:
    """Hooks the methods of `threading.Thread`."""
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
        # Seeing that a thread has ended orders as much as waiting for it.
        threads.joined(thread, clock.now(), alive)

    def begins(thread: threading.Thread) -> contextlib.AbstractContextManager[None]:
        return _entered(threads.running(threads.claim(thread), thread))

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


def _hook_module(patches: Patches, threads: Threads, sync: SyncRecorder) -> None:
    """Hooks the functions of `threading` and `_thread`."""

    def starts(*args: Any, **keywords: Any) -> ChangedArguments | None:
        if not args or not callable(args[0]) or keywords or _is_known(args[0]):
            return None
        start = threads.starting()
        run = around(args[0], lambda: _entered(threads.running(start, None)), left, thread=True)
        return ChangedArguments(None, (run, *args[1:]))

    def counts() -> bool | None:
        return sync.from_program(sys._getframe(1)) or None

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
    """Returns whether `threading` starts the thread, which is hooked, or the recorder does."""
    own = isinstance(getattr(function, "__self__", None), threading.Thread)
    module = getattr(function, "__module__", None) or ""
    return (own and function.__name__ == "_bootstrap") or module.startswith(_OWN)


def _entered(
    context: contextlib.AbstractContextManager[None],
) -> contextlib.AbstractContextManager[None]:
    """Enters a context and returns it; `left` exits it."""
    context.__enter__()
    return context


def left(context: contextlib.AbstractContextManager[None]) -> None:
    """Exits a context."""
    context.__exit__(None, None, None)


def ended(context: contextlib.AbstractContextManager[None], _: Any) -> None:
    """Exits a context; ignores the result or exception that a hook passes."""
    context.__exit__(None, None, None)


def _hook(context: HookContext) -> None:
    """Records thread events; every thread that starts from now on enters `inside`."""

    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        with context.enter_engine(), context.get(Validators).enter():
            yield

    sync, contexts = context.get(SyncRecorder), context.get(Contexts)
    if threading.active_count() > 1:
        sync.second_thread()
    threads = Threads(context.recorder, context.collective_stacks, sync, contexts, inside)
    _hook_thread(context.patches, threads)
    _hook_module(context.patches, threads, sync)
    os.register_at_fork(after_in_child=threads.forked)


HOOK = Hook("threads", _hook)
