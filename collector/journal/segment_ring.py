"""Bounds what a process's journals hold: the oldest segments make room for new ones.

This is `--keep-last`. All threads of a process share one bound, whoever of them writes more; a
segment is taken whole, when a thread needs its next one, so that storing a record takes no lock.
`observer/journal/segment_ring.cpp` is the same for the native engine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections import deque
from pathlib import Path

MIN_SEGMENT_BYTES = 2 * mmap.PAGESIZE
SHARE = 16
"""A segment is at most this part of the bound: with it goes what is overwritten at a time."""

KEPT_SHARE = 4
"""What is never overwritten (the module tree) takes at most this part of the bound."""


class Ring:
    """The segments of all threads of a process. Any thread calls it.

    Those that are being written to stay; together they get about half of the bound, with smaller
    segments the more threads there are. The rest is history, and its oldest segment goes first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit  # bytes
        # A signal's handler may run operators while its thread is in here.
        self._lock = threading.RLock()
        self._history: deque[tuple[Path, int, int]] = deque()  # file, bytes, records
        self._live = 0  # bytes of segments that are being written to,
        self._total = 0  # and of all
        self._kept = 0  # of `_live`, what is never overwritten
        self.overwritten = 0  # records

    def take(self, wanted: int, *, kept: bool = False) -> int:
        """Make room for a segment of `wanted` bytes at most; how many it may have, 0 for none."""
        wanted = _whole(min(wanted, self._limit // SHARE))
        with self._lock:
            if kept and self._kept + wanted > self._limit // KEPT_SHARE:
                return 0
            while wanted > MIN_SEGMENT_BYTES and self._live + wanted > self._limit // 2:
                wanted = _whole(wanted // 2)
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
        """A segment of `taken` bytes is history now, `used` bytes long; 0: it was never made."""
        size = -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            self._live -= taken
            self._total += size - taken
            if size:
                self._history.append((path, size, records))


def _whole(size: int) -> int:
    return max(MIN_SEGMENT_BYTES, size // mmap.PAGESIZE * mmap.PAGESIZE)
