"""Measures how long the calling thread was ready to run without a processor, as Linux counts it.

For the portable engine; the native one does the same in observer/thread/run_queue_delay.h.
"""

from __future__ import annotations

import threading
from pathlib import Path

from ...journal import own_files
from ...journal.journal import RUNNABLE_INTERVAL_NS, RUNNABLE_UNIT_NS

_MAX_UNITS = 2**16 - 1
_COUNTS = Path("/proc/thread-self/schedstat")


class Runnable(threading.local):
    """Keeps the last reading of each thread."""

    def __init__(self) -> None:
        self._read_at = 0
        self._total: int | None = None

    def since(self, now: int) -> int:
        """Returns the delay since the last call in RUNNABLE_UNIT_NS, plus 1; 0: not read."""
        if now - self._read_at < RUNNABLE_INTERVAL_NS:
            return 0
        self._read_at = now
        before, self._total = self._total, total_delay_ns()
        if before is None or self._total is None:
            return 0
        return min((self._total - before) // RUNNABLE_UNIT_NS + 1, _MAX_UNITS)


def total_delay_ns() -> int | None:
    """Returns ns over the calling thread's life; None where the system does not count it."""
    try:
        return int(own_files.read(_COUNTS).split()[1])
    except (OSError, IndexError, ValueError):
        return None
