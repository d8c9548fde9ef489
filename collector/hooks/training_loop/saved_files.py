"""Records which files torch.save writes and torch.load reads, and how long that takes."""

from __future__ import annotations

import os
from typing import Any

import torch

from ...format.loop_names import LOADED_FILE, SAVED_FILE
from ...journal import clock
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from .fresh_optimizers import FreshOptimizers

_LOST = "files of torch.save and torch.load"
_MAX_FILES = 1_000
"""Files of a process that are named; one of each step may be written for ever."""


class SavedFiles:
    """Writes a value named SAVED_FILE or LOADED_FILE at the end of each such call."""

    def __init__(self, recorder: Recorder, stacks: Stacks, fresh: FreshOptimizers) -> None:
        self._recorder = recorder
        self._fresh = fresh
        self._is_library = stacks.is_library
        self._known: set[str] = set()

    def saves(self, obj: Any = None, f: Any = None, *_: Any, **__: Any) -> tuple[str, int] | None:
        """Begins a call of torch.save; None where it writes to no file."""
        return self._begins(SAVED_FILE, f)

    def loads(self, f: Any = None, *_: Any, **__: Any) -> tuple[str, int] | None:
        """Begins a call of torch.load; None where it reads from no file."""
        return self._begins(LOADED_FILE, f)

    def ended(self, began: tuple[str, int], _: Any) -> None:
        """Records a call that returned or raised."""
        name, since = began
        self._recorder.value(name, (clock.now() - since) / 1e9)

    def loaded(self, began: tuple[str, int], content: Any) -> None:
        """Records a call of torch.load that returned, and looks at what it returns."""
        self.ended(began, None)
        place, _, path = began[0].removeprefix(LOADED_FILE).partition("/")
        self._fresh.loaded(place, path, content)

    def _begins(self, prefix: str, file: Any) -> tuple[str, int] | None:
        path = _path(file)
        if not path or not self._recorder.active:
            return None
        name = f"{prefix}{program_place(caller(2), self._is_library)}/{path}"
        if name not in self._known and len(self._known) >= _MAX_FILES:
            return None
        self._known.add(name)
        return name, clock.now()


def _path(file: Any) -> str:
    """Returns the whole path of a file that is given by its name or is open; empty without one."""
    named = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    path = os.path.realpath(named) if isinstance(named, str | os.PathLike) else ""
    return "" if path.startswith("/dev/") else path


def _hook(context: HookContext) -> None:
    patches = context.patches
    fresh = FreshOptimizers(context.recorder)
    patches.before_steps(fresh.stepping)
    files = SavedFiles(context.recorder, context.stacks, fresh)
    patches.ends(torch.serialization, "save", files.saves, files.ended, files.ended, lost=_LOST)
    patches.ends(torch.serialization, "load", files.loads, files.loaded, files.ended, lost=_LOST)


HOOK = Hook(_LOST, _hook)
