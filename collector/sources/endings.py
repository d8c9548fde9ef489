"""How the process ended, as far as Python sees it: exceptions that no one caught."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..recorder import Recorder

LIMIT = 300
"""Characters kept of an exception's message."""


def install(recorder: Recorder) -> Callable[[], None]:
    """Keep the last uncaught exception in the process's description; hooks of others still run."""
    hook, thread_hook = sys.excepthook, threading.excepthook

    def uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> Any:
        with recorder.guarded():
            recorder.describe(exception=describe(error, trace), ended="exception")
        return hook(kind, error, trace)

    def uncaught_in_thread(args: Any) -> Any:
        with recorder.guarded():
            if args.exc_value is not None:
                recorder.describe(exception=describe(args.exc_value, args.exc_traceback))
        return thread_hook(args)

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread

    def uninstall() -> None:
        # Where others hooked in after this, theirs stay: they call this one, which does no harm.
        if sys.excepthook is uncaught:
            sys.excepthook = hook
        if threading.excepthook is uncaught_in_thread:
            threading.excepthook = thread_hook

    return uninstall


def describe(error: BaseException, trace: TracebackType | None) -> str:
    """`ValueError: ... (file.py:12)`: one line, with the place where it was raised."""
    frames = traceback.extract_tb(trace)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{sentence(error)}{where}"


def sentence(error: BaseException) -> str:
    """`ValueError: ...`, in one line."""
    message = " ".join(str(error).split())[:LIMIT]
    return f"{type(error).__name__}: {message}"
