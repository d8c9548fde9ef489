"""Records how late event loops of asyncio wake tasks of the program, since their thread works.

A loop looks at its timers between callbacks. What a timer is late by then is work that a coroutine
did without an await, or time that the thread was ready to run without a processor, which Linux
counts.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from ...format.loop_names import BLOCKED_LOOP
from ...recorder.recorder import Recorder
from ...watchdog.event_loops import coroutine_frames
from ..base import Hook, HookContext
from ..stacks import PACKAGE_FOLDERS, code_line
from .run_queue_delay import total_delay_ns

_LEAST_S, _READ_S = 0.1, 0.02
"""Of a delay; between two readings of the time without a processor, which take microseconds."""


class BlockedLoops:
    """Writes a value named BLOCKED_LOOP where a task of the program waits _LEAST_S too long."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        # Instant in s, time without a processor in ns as last read in the loop's thread, and where
        # a task waits for a timer that had ended by then.
        self._read: weakref.WeakKeyDictionary[Any, tuple[float, int, str | None]] = (
            weakref.WeakKeyDictionary()
        )

    def iterates(self, loop: Any) -> None:
        """Looks at the first timer of a loop that begins an iteration."""
        now, before = loop.time(), self._read.get(loop)
        if before is not None and now - before[0] < _READ_S:
            if before[2] is not None:  # its callback ran
                self._read[loop] = *before[:2], None
            return
        with self._recorder.contain_errors():
            delay = total_delay_ns()
            if delay is None:
                return
            scheduled = getattr(loop, "_scheduled", None)
            handle = scheduled[0] if scheduled else None
            ended = handle is not None and handle._when <= now and not handle._cancelled
            place = self._waits(handle) if ended else None
            self._read[loop] = now, delay, place
            if before is None or not self._recorder.active:
                return
            since, place = (before[0], before[2]) if before[2] else (handle and handle._when, place)
            late_s = now - since - (delay - before[1]) / 1e9 if place is not None else 0.0
            if late_s >= _LEAST_S:
                self._recorder.value(f"{BLOCKED_LOOP}{place}", late_s)

    def _waits(self, handle: Any) -> str | None:
        """Returns file.py:12 where a task of the program waits for a timer; None: none does."""
        future = next(iter(handle._args or ()), None)
        if not isinstance(future, asyncio.Future):
            return None
        for callback, *_ in getattr(future, "_callbacks", None) or ():
            task = getattr(callback, "__self__", None)
            for frame in (
                coroutine_frames(task.get_coro()) if isinstance(task, asyncio.Task) else ()
            ):
                if self._is_program(frame.f_code.co_filename):
                    return code_line(frame.f_code, frame.f_lineno)
        return None

    def _is_program(self, file: str) -> bool:
        return not self._is_library(file) and not file.startswith(PACKAGE_FOLDERS)


def _hook(context: HookContext) -> None:
    loops, patches = BlockedLoops(context.recorder, context.stacks.is_library), context.patches
    patches.ends(
        asyncio.BaseEventLoop, "_run_once", loops.iterates, self_alone=True, lost="blocked loops"
    )


HOOK = Hook("blocked event loops", _hook)
