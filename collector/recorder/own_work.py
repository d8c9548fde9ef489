"""Context managers of the recorder's own work within a call of the program.

Classes, because hooks use several of them at each step: a generator takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..journal import clock
from .program_modes import NoModes


class Contained:
    """Contains exceptions of its block, which `failed` receives."""

    __slots__ = ("_failed",)

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Returns True where the exception goes no further."""
        if not isinstance(error, Exception):
            return False
        self._failed(error)
        return True


class OwnTorch:
    """Runs its block unrecorded and without the program's modes; `done` gets when it ran."""

    __slots__ = ("_before", "_began", "_done", "_modes", "_state")

    def __init__(self, state: Any, done: Callable[[tuple[int, int, int]], None]) -> None:
        """`state`: of the calling thread."""
        self._state, self._done = state, done
        self._modes = NoModes()

    def __enter__(self) -> None:
        state = self._state
        self._before, state.busy = state.busy, True
        try:
            self._modes.__enter__()
        except BaseException:
            state.busy = self._before
            raise
        self._began = clock.now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._done((self._state.ordinal, self._began, clock.now()))
        finally:
            try:
                self._modes.__exit__(kind, error, trace)
            finally:
                self._state.busy = self._before
