"""Records what daemon threads have not done of their queues as the process ends, and tasks of
asyncio that are not done as their loop ends, or that never begin.
"""

from __future__ import annotations

import ast
import asyncio
import asyncio.runners
import contextlib
import inspect
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from textwrap import dedent
from types import FrameType
from typing import Any

import torch

from ...format.loop_names import CANCELLED_TASK, NEVER_AWAITED, UNFINISHED_WORK
from ...recorder.recorder import Recorder
from ...watchdog.event_loops import coroutine_frames
from ...watchdog.thread_frames import thread_frames
from ..base import Hook, HookContext, Undo
from ..patches import caller
from ..stacks import code_line, program_place


class Takers:
    """Knows by which thread an item of each queue was taken last."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._last: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    def takes(self, queue: Any) -> None:
        """Notes that the calling thread is about to take an item: ident and ordinal."""
        state = getattr(self._recorder.local, "state", None)
        if state is not None:
            with contextlib.suppress(TypeError):  # a class of queues may have no hash
                self._last[queue] = threading.get_ident(), state.ordinal

    def close(self) -> None:
        """Writes a value named UNFINISHED_WORK for each queue with items for a daemon thread."""
        daemons = {one.ident for one in threading.enumerate() if one.daemon}
        with thread_frames() as frames:
            places = {
                ident: program_place(frame, self._is_library)
                for ident, frame in frames.items()
                if ident in daemons
            }
        for queue, (ident, ordinal) in list(self._last.items()):
            left = sum(map(_holds_data, list(getattr(queue, "queue", ()))))
            if left and ident in places:
                name = f"{UNFINISHED_WORK}{places[ident]}/{ordinal}"
                self._recorder.value(name, float(left))


_MAX_PARTS = 64


def _holds_data(item: Any, depth: int = 2) -> bool:
    """Whether an item is more than a sign to stop, by its first parts: bytes have millions."""
    if isinstance(item, Mapping):
        return bool(item)
    if isinstance(item, Sequence) and not isinstance(item, str) and depth:
        return any(_holds_data(one, depth - 1) for one in islice(item, _MAX_PARTS))
    return isinstance(item, torch.Tensor) or type(item).__name__ == "ndarray"


_MAX_TASKS = 64
"""Of a loop that are looked at."""


class _Tasks:
    """Writes a value named CANCELLED_TASK per line at which tasks are not done as a loop ends."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library

    def ends(self, loop: Any) -> None:
        """Looks at the tasks of a loop that ends without an error."""
        if not self._recorder.active or sys.exc_info()[0] is not None or loop.is_closed():
            return
        with self._recorder.contain_errors():
            places = map(self._left_at, [*asyncio.all_tasks(loop)][:_MAX_TASKS])
            for place, count in Counter(filter(None, places)).items():
                self._recorder.value(f"{CANCELLED_TASK}{place}", float(count))

    def _left_at(self, task: Any) -> str:
        """Returns where a task of the program waits, and its function, after a slash; empty: it
        serves until the end, waits before it begins, or the program cancels it."""
        frames = coroutine_frames(task.get_coro())
        cancelled = getattr(task, "cancelling", int)()
        if not frames or cancelled or self._is_library(frames[-1].f_code.co_filename):
            return ""
        own = [one for one in frames if not self._is_library(one.f_code.co_filename)]
        rest = [one for one in frames if one not in own]
        for_others = any(one.f_code.co_filename in _FOR_OTHERS for one in rest)
        if for_others or any(map(_serves, own)):
            return ""
        return f"{code_line(own[0].f_code, own[0].f_lineno)}/{frames[-1].f_code.co_name}"


_FOR_OTHERS = tuple(vars(asyncio)[one].__file__ for one in ("queues", "locks", "streams"))
"""Files of functions that wait for what others do."""


def _serves(frame: FrameType) -> bool:
    """Whether a coroutine has a loop without an end of its own, waits in its first statement, or
    has a source that is not known."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        source = dedent("".join(lines))
        if "\\" in source:  # the parser warns of some escapes, where the program would see it
            return True
        function = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return True
    if not isinstance(function, ast.AsyncFunctionDef):
        return True
    said = ast.get_docstring(function, clean=False) is not None
    begin = function.body[min(said, len(function.body) - 1)]
    line = frame.f_lineno - first + 1
    waits_first = line <= (begin.end_lineno or 0) and isinstance(begin, (ast.Expr, ast.Assign))
    return waits_first or any(
        isinstance(one, (ast.While, ast.AsyncFor)) for one in ast.walk(function)
    )


class _NeverAwaited:
    """Writes a value named NEVER_AWAITED for each line that lets go of a coroutine that never ran.

    Only as recording ends: a garbage collection within the recorder may let go of one.
    """

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._counts: Counter[str] = Counter()

    def dropped(self, coroutine: Any) -> None:
        """Counts a coroutine of the program: Python is about to warn that nothing awaited it."""
        code = coroutine.cr_code
        if self._is_library(code.co_filename) or len(self._counts) >= _MAX_TASKS:
            return
        place = program_place(caller(), self._is_library)
        self._counts[f"{place}/{code.co_name}"] += 1

    def close(self) -> None:
        """Writes the values."""
        for place, count in [*self._counts.items()]:
            self._recorder.value(f"{NEVER_AWAITED}{place}", float(count))


def _hook(context: HookContext) -> Undo:
    takers = context.share(Takers(context.recorder, context.stacks.is_library))
    tasks, patches = _Tasks(context.recorder, context.stacks.is_library), context.patches
    patches.ends(asyncio.runners, "_cancel_all_tasks", tasks.ends, self_alone=True)
    patches.ends(asyncio.BaseEventLoop, "close", tasks.ends, self_alone=True)
    dropped = _NeverAwaited(context.recorder, context.stacks.is_library)
    if context.library is not None:  # a function in between would change the line it warns of
        lost, name = "coroutines that nothing awaits", "_warn_unawaited_coroutine"
        patches.ends(warnings, name, dropped.dropped, self_alone=True, lost=lost)

    def close() -> None:
        takers.close()
        dropped.close()

    return close


HOOK = Hook("work of daemon threads", _hook)
