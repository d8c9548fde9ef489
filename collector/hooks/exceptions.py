"""Records how the process ended in Python's view: uncaught exceptions."""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

from torch.multiprocessing import reductions

from ..format.marks import GoneTensor, InterruptedJoin, LostError
from ..recorder.recorder import Recorder
from .base import Hook, HookContext
from .stacks import program_line

LIMIT = 300
"""Characters kept of an exception's message."""


def _hook(context: HookContext) -> None:
    """Keeps the last uncaught exception in the process's description; other hooks still run."""
    recorder, is_library = context.recorder, context.stacks.is_library

    def uncaught(
        _kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        # A program may call the hook itself; Python sets `last_value` before it does.
        if getattr(sys, "last_value", None) is error is not None:
            recorder.describe(exception=describe(error, trace, is_library), ended="exception")
            if isinstance(error, KeyboardInterrupt) and recorder.on_interrupt is not None:
                recorder.on_interrupt()
                _waited_in_vain(recorder, trace, is_library)
            elif _gets_shared_tensor(trace):
                recorder.mark(GoneTensor(str(recorder.process["exception"])).encode())

    def uncaught_in_thread(args: Any) -> None:
        if args.exc_value is not None:
            if recorder.process.get("ended") == "exception":
                return  # the main thread has raised before, and may be why
            text = describe(args.exc_value, args.exc_traceback, is_library)
            recorder.describe(exception=text)
            if _gets_shared_tensor(args.exc_traceback):
                recorder.mark(GoneTensor(text).encode())
            elif raised_in_program(args.exc_traceback, is_library):
                recorder.mark(LostError("thread", text).encode())

    def raised_in_process(_process: Any, error: BaseException) -> None:
        if isinstance(error, Exception):  # multiprocessing prints it and exits with status 1
            text = describe(error, error.__traceback__, is_library)
            if recorder.folder is None:  # it has run no operator: nothing was known of it
                recorder.mark(LostError("process", text).encode())
            recorder.describe(exception=text)

    patches = context.patches
    patches.ends(sys, "excepthook", uncaught)
    patches.ends(BaseProcess, "run", _itself, None, raised_in_process, self_alone=True)
    patches.ends(threading, "excepthook", uncaught_in_thread)


def _waited_in_vain(
    recorder: Recorder, trace: TracebackType | None, is_library: Callable[[str], bool]
) -> None:
    """Notes the process for whose end a program waited until Ctrl-C, if nothing else of the
    program is recorded: it ran no operator."""
    if recorder.folder is not None:
        return
    join = BaseProcess.join.__code__
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    for process in (frame.f_locals.get("self") for frame in frames if frame.f_code is join):
        place = program_line(frames[-1], is_library)
        recorder.mark(InterruptedJoin(getattr(process, "pid", None) or 0, place).encode())


def _gets_shared_tensor(trace: TracebackType | None) -> bool:
    """Returns whether an exception came as a tensor was taken out of a queue of multiprocessing."""
    return any(
        frame.f_code.co_name.startswith("rebuild_storage_")
        and frame.f_code.co_filename == reductions.__file__
        for frame, _ in traceback.walk_tb(trace)
    )


def _itself(process: Any) -> Any:
    return process


def raised_in_program(trace: TracebackType | None, is_library: Callable[[str], bool]) -> bool:
    """Returns whether code of the program was running where an exception was raised."""
    return any(not is_library(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace))


def describe(
    error: BaseException, trace: TracebackType | None, is_library: Callable[[str], bool]
) -> str:
    """Returns one line, `ValueError: ... (file.py:12)`, with the program's innermost place."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not is_library(frame.filename)] or frames
    where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{error_sentence(error)}{where}"


def error_sentence(error: BaseException) -> str:
    """Returns one line, `ValueError: ...`; a long message keeps its first and last line.

    A worker's error carries a whole traceback, with the cause at its end.
    """
    try:
        message = str(error)
    except Exception:  # of the program's own __str__
        message = "(its message cannot be read)"
    lines = [line.strip() for line in message.splitlines() if any(map(str.isalnum, line))]
    message = " ".join(lines) or message  # without the lines of a frame
    if len(message) > LIMIT and len(lines) > 1:
        message = f"{lines[0][: LIMIT // 2]} ... {lines[-1]}"
    message = " ".join(message.split())[:LIMIT]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
"""A frame of the text of a traceback."""


def place_of_text(text: str, is_library: Callable[[str], bool]) -> str:
    """Returns file:line of the program's innermost frame in the text of a traceback, as an error
    brings it from another process; empty without one."""
    own = [f"{file}:{line}" for file, line in _FRAME.findall(text) if not is_library(file)]
    return own[-1] if own else ""


HOOK = Hook("exceptions", _hook)
