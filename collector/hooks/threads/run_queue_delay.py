"""How long the calling thread was ready to run and had no processor, as Linux counts it.

For the portable engine; the native one does the same in observer/thread/run_queue_delay.h.
"""

from __future__ import annotations

import threading
from pathlib import Path

from ...journal import own_files
from ...journal.journal import RUNNABLE_INTERVAL_NS, RUNNABLE_UNIT_NS

_MOST = 2**16 - 1
_COUNTS = Path("/proc/thread-self/schedstat")


class Runnable(threading.local):
    """Of each thread that asks."""

    def __init__(self) -> None:
        self._read_at = 0
        self._total: int | None = None

    def since(self, now: int) -> int:
        """Since the last reading, in units of RUNNABLE_UNIT_NS and one more; 0: not read."""
        if now - self._read_at < RUNNABLE_INTERVAL_NS:
            return 0
        self._read_at = now
        before, self._total = self._total, _total()
        if before is None or self._total is None:
            return 0
        return min((self._total - before) // RUNNABLE_UNIT_NS + 1, _MOST)


def _total() -> int | None:
    """Nanoseconds of the thread's life so far; None where the system does not say."""
    try:
        return int(own_files.read(_COUNTS).split()[1])
    except (OSError, IndexError, ValueError):
        return None
