"""Interns the texts of a process: each is written once and has a number."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
import threading
from collections import Counter
from pathlib import Path

from .journal import STRINGS_FILE
from .own_files import Mapping, may_pass

MAX_SIGNATURES = 65_536
"""Distinct texts of shapes, dtypes and device. A program whose shapes never repeat would fill
memory and disk with them."""

MAX_TEXT_BYTES = 64_000_000
"""Of all texts of a process: names with a number in them may never repeat either."""

CUT_OFF = "…"
"""Replaces texts past these bounds."""

_FIRST_BYTES = 64 * 1024
_MAX_SPARE_BYTES = 1024 * 1024
_WORD = 4
_LENGTH = struct.Struct("<I")


class StringTable:
    """Interned texts of a process, readable after its death.

    Ids start at 1; 0 is the empty text. After `attach`, a text is on disk before its id is
    returned. A forked child attaches to its own folder and writes all texts so far, so that ids
    cached by callers stay valid.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"": 0}
        self._bytes = 0
        self._signatures = 0
        self._lock = threading.Lock()
        self._path = Path()
        self._mapping: Mapping | None = None
        self._size = self._used = 0  # of the mapping, bytes
        self._pid = 0  # of the process that attached
        self.failure: OSError | None = None
        self.left_out: Counter[str] = Counter()  # reason -> uses of LEFT_OUT

    def attach(self, folder: Path) -> None:
        """Writes the texts to `folder` from now on. Raises OSError."""
        with self._lock:
            self._path = folder / STRINGS_FILE
            self._grow(2 * self._bytes)  # includes the alignment
            for text in self._ids:
                if text:
                    self._store(_encoded(text))

    def detach(self) -> None:
        """Leaves the folder and keeps the ids, in a forked child."""
        self._lock = threading.Lock()
        self.close()
        self.failure = None
        self.left_out = Counter()

    def intern(self, text: str) -> int:
        """Returns the text's id, that of LEFT_OUT past the bound, or 0 if it cannot be stored."""
        found = self._ids.get(text)
        if found is not None:
            return found
        with self._lock:
            if self._bytes >= MAX_TEXT_BYTES:
                self.left_out["texts_left_out"] += 1
                text = CUT_OFF
            return self._add(text)

    def intern_signature(self, text: str) -> tuple[int, bool]:
        """Returns the id of shapes, dtypes and device, which have their own bound.

        Also returns False if the id is that of LEFT_OUT.
        """
        found = self._ids.get(text)
        if found is not None:
            return found, True
        with self._lock:
            if self._signatures >= MAX_SIGNATURES or self._bytes >= MAX_TEXT_BYTES:
                self.left_out["signatures_left_out"] += 1
                return self._add(CUT_OFF), False
            self._signatures += 1
            return self._add(text), True

    def close(self) -> None:
        """Closes the file; ids stay valid."""
        with self._lock:
            mapping, self._mapping = self._mapping, None
            if mapping is not None:
                mapping.close()
                if self._pid == os.getpid():
                    with contextlib.suppress(OSError):  # the folder may be gone
                        os.truncate(self._path, self._used)

    def _add(self, text: str) -> int:
        found = self._ids.get(text)
        if found is not None:
            return found
        if self.failure is not None and not may_pass(self.failure):
            return 0
        data = _encoded(text)
        # A forked child has not attached yet.
        if self._mapping is not None and self._pid == os.getpid():
            try:
                self._store(data)
            except OSError as error:
                self.failure = error
                return 0
        found = len(self._ids)
        self._ids[text] = found
        self._bytes += _LENGTH.size + len(data)
        return found

    def _store(self, data: bytes) -> None:
        end = self._used + _LENGTH.size + -(-len(data) // _WORD) * _WORD
        if end > self._size:
            self._grow(end)
        assert self._mapping is not None
        view = self._mapping.view
        start = self._used + _LENGTH.size
        view[start : start + len(data)] = data
        # The length is stored last: until then the texts end here for a reader.
        _LENGTH.pack_into(view, self._used, end - start)
        self._used = end

    def _grow(self, size: int) -> None:
        """Grows the file to at least `size` bytes, and more if it is large already."""
        before = self._mapping
        size = max(size, min(2 * self._size, self._size + _MAX_SPARE_BYTES), _FIRST_BYTES)
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if before is None:
            self._pid, self._used = os.getpid(), 0
        mapping = Mapping(self._path, size, os.O_CREAT | os.O_EXCL if before is None else 0)
        if before is not None:
            if mapping.identity != before.identity:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
            before.close()
        self._mapping, self._size = mapping, size


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
