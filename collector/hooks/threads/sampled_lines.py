"""Samples the line at which a training thread is: between two operators nothing else has one.

A thread of the recorder looks at the stacks of those that step optimizers, less often the longer
the run lasts. A training thread itself writes down what was seen of it, as an optimizer begins a
step.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any

from ...format.loop_names import SAMPLED_LINE
from ...journal import clock, own_threads
from ...recorder.recorder import Recorder
from ...watchdog.thread_frames import thread_frames
from ...watchdog.thread_states import call_own_thread
from ..base import Hook, HookContext, Undo
from ..stacks import PACKAGE_FOLDERS, program_line

_FIRST_S, _LAST_S = 0.02, 2.0
"""Between two looks, at first and in the end."""

_LOOKS = 100
"""After so many the time between two looks doubles."""

_MOST_OF_TIME = 200
"""Looks take at most this part of a processor's time: of many threads they take longer."""

_LATE_S = 0.04
"""A look that comes so late waited for Python's lock, and comes as what held it is over: where the
thread was meanwhile is unknown."""

_KEPT, _LINES, _FILES = 1_000, 1_000, 10_000
"""Samples until a thread steps; lines in all; files known to be of the program or not."""


class SampledLines:
    """Writes values named SAMPLED_LINE."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_other = lru_cache(maxsize=_FILES)(
            lambda file: is_library(file) or file.startswith(PACKAGE_FOLDERS)
        )
        self._folder = str(recorder.process.get("working_folder", ""))
        self._seen: dict[int, deque[tuple[int, str]]] = {}  # by thread
        self._lines: set[str] = set()
        self._looking_in = 0  # the process

    def begins_step(self, _: Any) -> None:
        """Writes what was seen of the calling thread, which begins a step of an optimizer."""
        if self._looking_in != os.getpid():  # also in a forked process
            self._looking_in = os.getpid()
            self._seen = {}
            own_threads.start_thread(self._run, self._looking_in)
        seen = self._seen.setdefault(threading.get_ident(), deque(maxlen=_KEPT))
        now = clock.now()
        while seen:
            instant, line = seen.popleft()
            if self._recorder.active:
                self._recorder.value(f"{SAMPLED_LINE}{line}", (now - instant) / 1e9)

    def stop(self) -> None:
        """Stops looking."""
        self._looking_in = 0

    def _run(self, process: int) -> None:
        call_own_thread("lines")
        looks, pause_s = 0, _FIRST_S
        while process == self._looking_in:
            due = time.perf_counter() + pause_s
            time.sleep(pause_s)
            late_s, began = time.perf_counter() - due, time.thread_time()
            collects = own_threads.pause_collection()
            try:
                with self._recorder.contain_errors():
                    self._look(round(late_s * 1e9) if late_s > _LATE_S else 0)
                looks += 1
                least_s = min(_FIRST_S * 2 ** (looks // _LOOKS), _LAST_S)
                pause_s = max(least_s, (time.thread_time() - began) * _MOST_OF_TIME)
            finally:
                own_threads.resume_collection(collects)

    def _look(self, late_ns: int) -> None:
        instant = clock.now() - late_ns
        with thread_frames() as frames:
            for ident in [*self._seen]:
                if ident not in frames:
                    del self._seen[ident]
                elif line := self._line(None if late_ns else frames[ident]):
                    self._seen[ident].append((instant, line))

    def _line(self, frame: FrameType | None) -> str:
        """Returns file:12 of the program's innermost frame, "?" without a frame, "" for too many
        lines."""
        called = program_line(frame, self._is_other)
        line = os.path.join(self._folder, called) if called else "?"
        if line not in self._lines:
            if len(self._lines) >= _LINES:
                return ""
            self._lines.add(line)
        return line


def _hook(context: HookContext) -> Undo:
    lines = SampledLines(context.recorder, context.stacks.is_library)
    context.patches.before_steps(lines.begins_step)
    return lines.stop


HOOK = Hook("lines of training threads", _hook)
