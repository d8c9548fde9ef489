"""Python stacks: the frames of the program, without those of torch, Python and the recorder."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

CACHE_LIMIT = 100_000
"""Distinct stacks remembered; past it the cache starts anew, so that memory stays bounded."""


class Stacks:
    """Captures the calling thread's stack as a text id; 0 where no frame of the program is on it.

    A frame is a line `file TAB line TAB function`, innermost first, at most `depth` of them.
    """

    def __init__(self, intern: Callable[[str], int], depth: int) -> None:
        self._intern = intern
        self._depth = depth
        self._library: dict[str, bool] = {}
        self._seen: dict[tuple[str, tuple[tuple[CodeType, int], ...]], int] = {}
        own = Path(__file__).parents[1]
        torch_file, decorators = (
            getattr(sys.modules.get(name), "__file__", None)
            for name in ("torch", "typing_extensions")
        )
        # Installed packages lie below the standard library's folder, but belong to the program.
        self._inside = tuple(
            str(folder) + os.sep
            # Code is named as it was found: it may have been through a link.
            for folder in (own, own.resolve(), torch_file and Path(torch_file).parent)
            if folder
        )
        # What torch.fx and the compiler's inductor write is called by the program's own lines.
        written = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        self._inside += ("<eval_with_key>", str(Path(tempfile.gettempdir(), "torchinductor_")))
        self._inside += (written.rstrip(os.sep) + os.sep,) if written else ()
        if decorators:  # torch wraps what is deprecated with it
            self._inside += (decorators,)
        self._standard = sysconfig.get_path("stdlib") + os.sep
        self._packages = tuple({sysconfig.get_path(p) + os.sep for p in ("purelib", "platlib")})

    @property
    def folders(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """What decides which frames are kept: left out, kept after all, and the library's own."""
        return self._inside, self._packages, self._standard

    def capture(self, said: str = "") -> int:
        """Id of the caller's stack; `said` is put after the innermost function's name."""
        frame: FrameType | None = sys._getframe(1)
        frames: list[tuple[CodeType, int]] = []
        library = self._library
        while frame is not None and len(frames) < self._depth:
            code = frame.f_code
            skipped = library.get(code.co_filename)
            if skipped is None:
                skipped = library[code.co_filename] = self.is_library(code.co_filename)
            if not skipped:
                frames.append((code, frame.f_lineno))
            frame = frame.f_back
        key = said, tuple(frames)
        found = self._seen.get(key)
        if found is None:
            if len(self._seen) >= CACHE_LIMIT:
                self._seen.clear()
            lines = [f"{code.co_filename}\t{line}\t{code.co_name}" for code, line in frames]
            lines[:1] = [line + said for line in lines[:1]]
            found = self._seen[key] = self._intern("\n".join(lines))
        return found

    def place(self) -> str:
        """`file:line` of the innermost frame of the program."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self.is_library(frame.f_code.co_filename):
            frame = frame.f_back
        return (
            "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        )

    def is_library(self, file: str) -> bool:
        """Whether code of that file is torch's, Python's or the recorder's."""
        if file.startswith(("<frozen", *self._inside)):
            return True
        return file.startswith(self._standard) and not file.startswith(self._packages)
