"""Interns the texts of a process: each is written once and has a number."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections import Counter
from pathlib import Path

from .journal import STRINGS_FILE
from .own_files import Mapping, may_pass
from .own_lock import own_lock

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


class StringTable:
    """Interned texts of a process, readable after its death.

    Ids start at 1; 0 is the empty text. After `attach`, a text is on disk before its id is
    returned. A forked child attaches to its own folder and writes all texts so far, so that ids
    cached by callers stay valid.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"": 0}
        self._count = 1
        self._bytes = 0
        self._signatures = 0
        self._lock = own_lock()
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
            pid, known, size, data = os.getpid(), 0, 0, b""
            while known != self._count:  # a signal handler of the program may add some meanwhile
                known = self._count
                data = b"".join(map(_encoded, list(self._ids)[1:]))
                size = len(data)
                self._grow(size)
            assert self._mapping is not None
            self._mapping.view[:size] = data
            self._used, self._pid = size, pid

    def detach(self) -> None:
        """Leaves the folder and keeps the ids, in a forked child."""
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
        if self.failure is not None and not may_pass(self.failure):
            return self._ids.get(text, 0)
        # A forked child has not attached yet.
        stored = self._mapping is not None and self._pid == os.getpid()
        try:
            self._commit(text, _encoded(text), stored=stored)
        except OSError as error:
            self.failure = error
        return self._ids.get(text, 0)

    def _commit(self, text: str, data: bytes, *, stored: bool) -> None:
        """Gives a text its id, and stores it behind the others. Raises OSError."""
        size = len(data)
        while stored and self._used + size > self._size:
            self._grow(self._used + size)
        # From here on nothing is called, so no signal handler of the program runs in between.
        if text in self._ids:
            return
        if stored and self._mapping is not None:
            view, used = self._mapping.view, self._used
            view[used + _WORD : used + size] = data[_WORD:]
            view[used : used + _WORD] = data[:_WORD]  # until then a reader finds no text here
            self._used = used + size
        self._ids[text] = self._count
        self._count += 1
        self._bytes += size

    def _grow(self, size: int) -> None:
        """Grows the file to at least `size` bytes, and more if it is large already."""
        before = self._mapping
        size = max(size, min(2 * self._size, self._size + _MAX_SPARE_BYTES), _FIRST_BYTES)
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if before is None:
            self._used = 0
        mapping = Mapping(self._path, size, os.O_CREAT if before is None else 0)
        if self._mapping is not before:  # a signal handler of the program has grown it meanwhile
            mapping.close()
            return
        if before is not None and mapping.identity != before.identity:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        self._mapping, self._size = mapping, size
        if before is not None:
            before.close()


def _encoded(text: str) -> bytes:
    """Returns the text as the file has it: its length, then UTF-8 with zeros up to a whole word."""
    data = text.encode("utf-8", "replace")
    data += bytes(-len(data) % _WORD)
    return len(data).to_bytes(_WORD, "little") + data
