"""Threads: their start, begin, end and join, and the way for an engine into each new one."""

from __future__ import annotations

import _thread
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from .. import clock
from ..kinds import SyncKind
from ..recorder import Recorder
from .contexts import Contexts, Inherited
from .handovers import Handovers
from .stacks import Stacks


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
        self._ordinals: weakref.WeakKeyDictionary[threading.Thread, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )  # thread -> its ordinal, its parent's
        self._left: weakref.WeakKeyDictionary[threading.Thread, Inherited | None] = (
            weakref.WeakKeyDictionary()
        )

    def started(self, thread: threading.Thread) -> None:
        """The calling thread is about to start `thread`."""
        recorder = self._recorder
        self._handovers.second_thread()
        ordinal = recorder.reserve_thread()
        self._ordinals[thread] = (ordinal, recorder.thread().ordinal)
        instant = clock.now()
        recorder.sync(SyncKind.thread_start, instant, instant, ordinal, self._stack())
        self._left[thread] = self._contexts.left("thread")

    def joining(self, thread: threading.Thread, start: int) -> bool:
        """The calling thread waits for `thread` from now on. Whether that was noted."""
        recorder, known = self._recorder, self._ordinals.get(thread)
        if known is None or not recorder.active or not hasattr(recorder.local, "state"):
            return False
        # Of an open event only its target is kept: decoding takes that of a join for its peer.
        recorder.open_sync(SyncKind.thread_join, start, known[0] + 1, self._stack())
        return True

    def joined(self, thread: threading.Thread, start: int, alive: bool) -> None:
        """The calling thread waited for `thread` since `start`, and knows whether it has ended."""
        known = self._ordinals.get(thread)
        if known is not None and not alive:
            self._recorder.sync(SyncKind.thread_join, start, clock.now(), known[0], self._stack())

    @contextlib.contextmanager
    def running(
        self, thread: threading.Thread | None, left: Inherited | None = None
    ) -> Iterator[None]:
        """Around everything a started thread does; `left`: by who started it, if no `thread`."""
        recorder = self._recorder
        inside: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        try:
            ordinal, parent = self._ordinals.get(thread, (None, None)) if thread else (None, None)
            recorder.enter_thread(ordinal, thread)
            instant = clock.now()
            recorder.sync(SyncKind.thread_begin, instant, instant, parent)
            self._contexts.enter(self._left.pop(thread, None) if thread else left)
            inside = self._inside()
        except Exception as error:
            recorder.failed(error)
        try:
            with inside:
                yield
        finally:
            try:
                self._contexts.leave((None, 0))
                instant = clock.now()
                recorder.sync(SyncKind.thread_end, instant, instant)
                recorder.leave_thread()
            except Exception as error:
                recorder.failed(error)

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
    bootstrap, start_raw = thread_class._bootstrap_inner, _thread.start_new_thread

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
        with recorder.guarded():
            opened = threads.joining(self, begun)
        try:
            join(self, timeout)
        finally:
            if opened:
                with recorder.guarded():
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
        with threads.running(self):
            bootstrap(self)

    @wraps(start_raw)
    def recorded_start_raw(function: Callable[..., Any], *args: Any) -> int:
        handovers.second_thread()
        left = contexts.left("thread")

        def run(*arguments: Any, **keywords: Any) -> Any:
            with threads.running(None, left):
                return function(*arguments, **keywords)

        return start_raw(run, *args)

    # threading keeps the original start_new_thread under a name of its own, so that a
    # threading.Thread passes through `running` once.
    patches = (
        (thread_class, "start", start, recorded_start),
        (thread_class, "join", join, recorded_join),
        (thread_class, "is_alive", is_alive, recorded_is_alive),
        (thread_class, "_bootstrap_inner", bootstrap, recorded_bootstrap),
        (_thread, "start_new_thread", start_raw, recorded_start_raw),
    )
    for owner, name, _, replacement in patches:
        setattr(owner, name, replacement)

    def uninstall() -> None:
        for owner, name, original, _ in patches:
            setattr(owner, name, original)

    return uninstall
