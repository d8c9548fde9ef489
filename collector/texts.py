"""The texts of a process: each is written once, and named by a number from then on."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections import Counter
from pathlib import Path

from .journal import STRINGS_FILE

MAXIMUM_SIGNATURES = 65_536
"""Distinct texts of shapes, dtypes and device in a process. A program whose shapes never repeat
would fill memory and disk with them."""

MAXIMUM_BYTES = 64_000_000
"""Of all texts of a process together: names that hold a number never repeat either."""

LEFT_OUT = "…"
"""What stands for a text past these bounds."""


class StringTable:
    """Interned texts of a process, readable after its death.

    Ids start at 1; 0 is the empty text. Once `attach` gave it a folder, a text is on disk before
    its id is handed out. A forked child attaches to a folder of its own and writes all texts so
    far, so that ids which callers remember stay valid in it.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"": 0}
        self._bytes = 0
        self._signatures = 0
        self._lock = threading.Lock()
        self._file: int | None = None
        self.failure: OSError | None = None
        self.left_out: Counter[str] = Counter()  # reason -> times that LEFT_OUT was given

    def attach(self, folder: Path) -> None:
        """Keep the texts in `folder` from now on. Raises OSError."""
        with self._lock:
            self._file = os.open(
                folder / STRINGS_FILE,
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                0o644,
            )
            self._write(b"".join(_encoded(text) for text in self._ids if text))

    def detach(self) -> None:
        """Forget the folder, keep the ids (a forked child; locks of the parent are void there)."""
        self._lock = threading.Lock()
        self.close()
        self.failure = None
        self.left_out = Counter()

    def intern(self, text: str) -> int:
        """The text's id, that of LEFT_OUT where there are too many; 0 when it cannot be stored."""
        found = self._ids.get(text)
        if found is not None:
            return found
        with self._lock:
            if self._bytes >= MAXIMUM_BYTES:
                self.left_out["texts_left_out"] += 1
                text = LEFT_OUT
            return self._add(text)

    def intern_signature(self, text: str) -> tuple[int, bool]:
        """The same for shapes, dtypes and device, of which there is a bound of their own.

        Also whether the id is that text's.
        """
        found = self._ids.get(text)
        if found is not None:
            return found, True
        with self._lock:
            if self._signatures >= MAXIMUM_SIGNATURES or self._bytes >= MAXIMUM_BYTES:
                self.left_out["signatures_left_out"] += 1
                return self._add(LEFT_OUT), False
            self._signatures += 1
            return self._add(text), True

    def close(self) -> None:
        """Close the file; what was interned stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _add(self, text: str) -> int:
        found = self._ids.get(text)
        if found is not None:
            return found
        if self.failure is not None:
            return 0
        data = _encoded(text)
        if self._file is not None:
            try:
                self._write(data)
            except OSError as error:
                self.failure = error
                return 0
        found = len(self._ids)
        self._ids[text] = found
        self._bytes += len(data)
        return found

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        if data and os.write(self._file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _encoded(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return struct.pack("<I", len(data)) + data
