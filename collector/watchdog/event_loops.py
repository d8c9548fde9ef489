"""Finds asyncio loops that nothing can wake: every task waits for a future that no one sets.

A loop rests in its selector. Without a timer, a handler of signals or a file of the program's, only
another thread can wake it: by `call_soon_threadsafe`, not by a callback that it leaves there.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

WAITS = "a future of asyncio"
"""Cause of the wait of a thread whose loop rests so."""

_MAX_FRAMES = 8


def waiting_places(frame: FrameType | None) -> list[list[Any]]:
    """Returns [file, line, function] of each coroutine of a task of the thread's loop that waits,
    innermost first.

    `frame`: the thread's innermost. Empty: it runs no loop of asyncio, or something may wake it.
    """
    asyncio = sys.modules.get("asyncio")
    loop = _resting_loop(frame)
    if asyncio is None or loop is None:
        return []
    try:
        if loop._scheduled or loop._signal_handlers:
            return []
        own = {loop._ssock.fileno()}
        if set(loop._selector.get_map()) - own:
            return []
        for task in asyncio.all_tasks(loop):
            waits_for = task._fut_waiter
            if waits_for is not None and type(waits_for) is asyncio.Future:
                frames = coroutine_frames(task.get_coro())
                return [[f.f_code.co_filename, f.f_lineno, f.f_code.co_name] for f in frames]
    except (AttributeError, RuntimeError, TypeError):  # a loop of another kind
        return []
    return []


def _resting_loop(frame: FrameType | None) -> Any:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        file = os.path.basename(code.co_filename)
        if (file, code.co_name) == ("base_events.py", "_run_once"):
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def coroutine_frames(coroutine: Any) -> list[FrameType]:
    """Returns the frames of a coroutine and of those that it awaits, innermost first."""
    found: list[FrameType] = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        found.insert(0, frame)
        coroutine = coroutine.cr_await
    return found
