"""Bounds the size of a process's journals: new segments replace the oldest (`--keep-last`).

All threads of a process share one bound. A thread takes a whole segment at a time, so that storing
a record takes no lock.
`observer/journal/segment_ring.cpp` is the same for the native engine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections import deque
from pathlib import Path

from .own_lock import own_lock

MIN_SEGMENT_BYTES = 2 * mmap.PAGESIZE
BUFFER_PARTS = 16
"""A segment is at most the SHARE-th part of the bound; that much is overwritten at a time."""

KEPT_SHARE = 4
"""Records that are never overwritten (the module tree) take at most this part of the bound."""


class Ring:
    """Segments of all threads of a process. Any thread may call it.

    Segments being written to stay. Together they get about half of the bound, so more threads get
    smaller segments. The rest is history; its oldest segment is removed first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes
        self._lock = own_lock()
        self._history: deque[tuple[Path, int, int]] = deque()  # file, bytes, records
        self._live = 0  # bytes of segments being written to
        self._total = 0  # bytes of all segments
        self._kept = 0  # the part of `_live` that is never overwritten
        self.overwritten = 0  # records

    def take(self, wanted: int, *, kept: bool = False) -> int:
        """Makes room for a segment of at most `wanted` bytes; returns its bytes, 0: no room."""
        wanted = _page_multiple(min(wanted, self._limit // BUFFER_PARTS))
        with self._lock:
            if kept and self._kept + wanted > self._limit // KEPT_SHARE:
                return 0
            while wanted > MIN_SEGMENT_BYTES and self._live + wanted > self._limit // 2:
                wanted = _page_multiple(wanted // 2)
            while self._total + wanted > self._limit and self._history:
                path, size, records = self._history.popleft()
                with contextlib.suppress(OSError):  # the folder may be gone
                    os.unlink(path)
                self._total -= size
                self.overwritten += records
            if self._total + wanted > self._limit:
                return 0
            self._total += wanted
            self._live += wanted
            self._kept += wanted if kept else 0
            return wanted

    def seal(self, path: Path, taken: int, used: int, records: int) -> None:
        """Moves a segment of `taken` bytes to history, with `used` bytes; 0: it was not created."""
        size = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            self._live -= taken
            self._total += size - taken
            if size:
                self._history.append((path, size, records))


def _page_multiple(size: int) -> int:
    return max(MIN_SEGMENT_BYTES, size // mmap.PAGESIZE * mmap.PAGESIZE)
