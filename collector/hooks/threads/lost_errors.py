"""Records exceptions of tasks of pools and of asyncio that the program never reads."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import pool
from typing import Any

from ...format.marks import LostError
from ...recorder.recorder import Recorder
from ..exceptions import describe, error_sentence, place_of_text, raised_in_program
from ..patches import caller
from ..stacks import program_line

_POOL = pool.__file__

_MAX_READ = 10_000
"""Different errors that the program got and that are remembered."""

_NEVER_READ = "exception was never retrieved"
"""How asyncio ends what it reports of a task or future whose error was not read."""


class LostErrors:
    """Writes a mark LostError where a future goes, or the recording ends, before it is read."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._unread: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._submitted: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._read: set[str] = set()  # errors that the program got, of one of several tasks

    def failed(self, future: Future[Any], error: Any) -> None:
        """Notes a future that gets an exception of the program, and has no callbacks."""
        if not isinstance(error, Exception) or getattr(future, "_done_callbacks", None):
            return
        trace = error.__traceback__
        if not self._recorder.active or not raised_in_program(trace, self._is_library):
            return
        self._keep(future, describe(error, trace, self._is_library))

    def submitted(self, result: Any, *_: Any, **__: Any) -> None:
        """Notes the line of the program that gives a task to a pool of multiprocessing."""
        frame = caller()
        while frame is not None and frame.f_code.co_filename == _POOL:
            frame = frame.f_back
        if frame is not None and not self._is_library(frame.f_code.co_filename):
            self._submitted[result] = program_line(frame, self._is_library)

    def failed_in_pool(self, result: Any, error: Any) -> None:
        """Notes a result of such a task that gets an exception, which no callback gets."""
        place = self._submitted.get(result)
        if place is None or getattr(result, "_error_callback", None) is not None:
            return
        if isinstance(error, Exception) and self._recorder.active:
            raised = self._raised_at(error) or place
            self._keep(result, f"{error_sentence(error)} ({raised})")

    def _raised_at(self, error: Exception) -> str:
        """Returns file:line of the program's innermost frame; of another process by its text."""
        trace = error.__traceback__
        if trace is not None and raised_in_program(trace, self._is_library):
            return describe(error, trace, self._is_library).rpartition(" (")[2].removesuffix(")")
        return place_of_text(str(getattr(error.__cause__, "tb", "")), self._is_library)

    def _keep(self, future: Any, text: str) -> None:
        key = id(future)
        self._unread[key] = weakref.ref(future, lambda _: self._lost(key)), text

    def read(self, future: Any) -> None:
        """Notes that the program asks a future for its result, or adds a callback."""
        found = self._unread.pop(id(future), None)
        if found is not None:
            if len(self._read) >= _MAX_READ:
                self._read.clear()
            self._read.add(found[1])

    def reported(self, loop: Any, context: Any) -> None:
        """Notes what asyncio says of a task of the program's that goes before its error is read."""
        if type(context) is dict and str(context.get("message", "")).endswith(_NEVER_READ):
            self._of_coroutine(context.get("exception"))

    def close(self) -> None:
        """Writes the others, as the recording ends."""
        with self._recorder.contain_errors():
            for error in _unread_of_asyncio():
                self._of_coroutine(error)
        for key in list(self._unread):
            self._lost(key)

    def _lost(self, key: int) -> None:
        found = self._unread.pop(key, None)
        if found is not None and found[1] not in self._read:
            with self._recorder.contain_errors():
                self._recorder.mark(LostError("task", found[1]).encode())

    def _of_coroutine(self, error: Any) -> None:
        trace = getattr(error, "__traceback__", None)
        if isinstance(error, Exception) and raised_in_program(trace, self._is_library):
            text = describe(error, trace, self._is_library)
            self._recorder.mark(LostError("coroutine", text).encode())


def _unread_of_asyncio() -> list[Any]:
    """Returns errors of tasks that are still there, and would be reported if they went."""
    tasks = sys.modules.get("asyncio.tasks")
    known = getattr(tasks, "_scheduled_tasks", None) or getattr(tasks, "_all_tasks", None) or ()
    return [
        task._exception
        for task in list(known)
        if task.done() and not task.cancelled() and getattr(task, "_log_traceback", False)
    ]
