"""Records which files torch.save writes and torch.load reads, how long that takes, and what those
hold that the program opens to read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
from pathlib import PurePath
from typing import Any

import torch

from ...format.loop_names import LOADED_FILE, READ_FILE, SAVED_FILE
from ...format.program_files import INSTALLED_FILE
from ...journal import clock
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller, hooks_in_place
from ..stacks import Stacks, program_place
from ..training.batches import Batches
from ..training.replication import short_hash
from .fresh_optimizers import FreshOptimizers

_LOST = "files of torch.save and torch.load"
_MAX_FILES = 1_000
"""Files of a process that are named; one of each step may be written for ever."""


class SavedFiles:
    """Writes a value named SAVED_FILE or LOADED_FILE at the end of each such call."""

    def __init__(
        self, recorder: Recorder, stacks: Stacks, fresh: FreshOptimizers, batches: Batches | None
    ) -> None:
        self._recorder = recorder
        self._fresh, self._batches = fresh, batches
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

    def saved(self, began: tuple[str, int], _: Any) -> None:
        """Records a call of torch.save that returned, and has the next batch sampled."""
        self.ended(began, None)
        if self._batches is not None:
            self._batches.saved_step = self._recorder.step

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


_MAX_READ = 64
"""Files that are opened to read and looked into: a dataset may have millions."""

_BLOCKS, _BLOCK = 8, 1 << 14
"""Parts of such a file that are read, evenly spaced, and their bytes: all of a small file."""

_NOT_DATA = re.compile(
    rf"^/(dev|proc|sys|run|etc)/|[.](py|pyc|so)$|{INSTALLED_FILE.pattern}"
    rf"|^{re.escape(os.path.dirname(sys.executable))}/"
)


class ReadFiles:
    """Writes a value named READ_FILE for each of the first files that the program opens to read."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: set[str] = set()
        self._unwritten: list[tuple[str, float]] = []
        self._started = clock.program_start_ns()

    def opens(self, file: Any = None, mode: Any = "r", *_: Any, **__: Any) -> str | None:
        """Returns the name of a file that is looked into once it is open."""
        full = len(self._known) >= _MAX_READ or not self._started
        if full or not self._recorder.active:
            return None
        name = file if isinstance(file, str) else str(file) if isinstance(file, PurePath) else ""
        if not name or not isinstance(mode, str) or mode.strip("rbt"):
            return None
        return None if name in self._known or _NOT_DATA.search(name) else name

    def opened(self, name: str, file: Any) -> None:
        """Records what a file holds that was there before the program."""
        self._known.add(name)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a file of another kind
            content = _content(file.fileno(), self._started)
            if content is not None:
                self._unwritten.append((f"{READ_FILE}{os.path.abspath(name)}", content))

    def stepping(self, *_: Any) -> None:
        """Writes the hashes of files before a step. Written at once it would be the first event
        of a process that only reads, or a sign of life of one that hangs: the recorder reads too.
        """
        known, self._unwritten = self._unwritten, []
        for name, content in known:
            self._recorder.value(name, content)


def _content(descriptor: int, before_ns: int) -> float | None:
    """Returns a hash of parts of a file; None of a pipe and of a file that was written later.

    Read on the program's own descriptor, at offsets: to open and close the file once more would
    release the locks that the program has on it (fcntl(2)).
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_mtime_ns > before_ns:
        return None
    begins = range(0, status.st_size, max(_BLOCK, -(-status.st_size // _BLOCKS)))
    parts = [os.pread(descriptor, _BLOCK, begin) for begin in begins]
    return short_hash(b"".join([str(status.st_size).encode(), *parts]))


def _path(file: Any) -> str:
    """Returns the whole path of a file that is given by its name or is open; empty without one."""
    named = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    path = os.path.realpath(named) if isinstance(named, str | os.PathLike) else ""
    return "" if path.startswith("/dev/") else path


def _hook(context: HookContext) -> None:
    patches = context.patches
    fresh = FreshOptimizers(context.recorder)
    patches.before_steps(fresh.stepping)
    files = SavedFiles(context.recorder, context.stacks, fresh, context.find(Batches))
    patches.ends(torch.serialization, "save", files.saves, files.saved, files.ended, lost=_LOST)
    patches.ends(torch.serialization, "load", files.loads, files.loaded, files.ended, lost=_LOST)
    if hooks_in_place():
        read = ReadFiles(context.recorder)
        patches.before_steps(read.stepping)
        patches.ends(io, "open", read.opens, read.opened)


HOOK = Hook(_LOST, _hook)
