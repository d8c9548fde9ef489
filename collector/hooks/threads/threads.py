"""Threads: their start, begin, end and join, and the way for an engine into each new one."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

from ...format.record_kinds import SyncKind
from ...journal import clock
from ...journal.process_journals import MAIN_ORDINAL
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..stacks import Stacks
from .contexts import NOTHING, Contexts, Inherited
from .sync_events import Handovers

_MOST_ENDED = 100_000


class Start(NamedTuple):
    """How a thread was started."""

    ordinal: int
    parent: int  # its ordinal
    left: Inherited | None


class Threads:
    """Wraps `threading.Thread` and `_thread.start_new_thread`."""

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
    thread_class: Any = threading.Thread
    start, join, is_alive = thread_class.start, thread_class.join, thread_class.is_alive
    bootstrap: Any = optional("threading", "Thread._bootstrap_inner", "starts and ends of threads")
    shutdown: Any = optional("threading", "_shutdown", "threads that outlive the main one")
    start_raw = _thread.start_new_thread
    module: Any = threading
    active_count, enumerate_ = module.active_count, module.enumerate

    @wraps(start)
    def recorded_start(self: threading.Thread) -> None:
        try:
            threads.started(self)
        except Exception as error:
            recorder.failed(error)
        start(self)

    @wraps(join)
    def recorded_join(self: threading.Thread, timeout: float | None = None) -> None:
        begun, opened = clock.now(), False
        with recorder.contain_errors():
            opened = threads.joining(self, begun)
        try:
            join(self, timeout)
        finally:
            if opened:
                with recorder.contain_errors():
                    recorder.close_sync()
        try:
            threads.joined(self, begun, is_alive(self))
        except Exception as error:
            recorder.failed(error)

    @wraps(is_alive)
    def recorded_is_alive(self: threading.Thread) -> bool:
        alive: bool = is_alive(self)
        try:  # to see that a thread has ended is as good as to wait for it
            instant = clock.now()
            threads.joined(self, instant, alive)
        except Exception as error:
            recorder.failed(error)
        return alive

    @wraps(bootstrap)
    def recorded_bootstrap(self: threading.Thread) -> None:
        started: Start | None = None
        with recorder.contain_errors():
            started = threads.taken(self)
        with threads.running(started, self):
            bootstrap(self)

    @wraps(start_raw)
    def recorded_start_raw(function: Callable[..., Any], *args: Any) -> int:
        started: Start | None = None
        with recorder.contain_errors():
            started = threads.starting()

        def run(*arguments: Any, **keywords: Any) -> Any:
            with threads.running(started, None):
                return function(*arguments, **keywords)

        return start_raw(run, *args)

    @wraps(shutdown)
    def recorded_shutdown() -> None:
        with recorder.contain_errors():
            threads.main_ends()
        shutdown()
        with recorder.contain_errors():
            threads.saw_ends()

    def counting(count: Callable[[], Any]) -> Callable[[], Any]:
        @wraps(count)
        def recorded_count() -> Any:
            counted = count()
            if handovers.concurrent and handovers.from_program():
                with recorder.contain_errors():
                    threads.saw_ends()
            return counted

        return recorded_count

    # threading keeps the original start_new_thread under a name of its own, so that a
    # threading.Thread passes through `running` once.
    patches: tuple[tuple[Any, str, Any, Any], ...] = (
        (thread_class, "start", start, recorded_start),
        (thread_class, "join", join, recorded_join),
        (thread_class, "is_alive", is_alive, recorded_is_alive),
        (thread_class, "_bootstrap_inner", bootstrap, recorded_bootstrap),
        (_thread, "start_new_thread", start_raw, recorded_start_raw),
        (module, "_shutdown", shutdown, recorded_shutdown),
        (module, "active_count", active_count, counting(active_count)),
        (module, "enumerate", enumerate_, counting(enumerate_)),
    )
    patches = tuple(one for one in patches if one[2] is not None)
    for owner, name, _, replacement in patches:
        setattr(owner, name, replacement)
    os.register_at_fork(after_in_child=threads.forked)

    def uninstall() -> None:
        for owner, name, original, _ in patches:
            setattr(owner, name, original)

    return uninstall
