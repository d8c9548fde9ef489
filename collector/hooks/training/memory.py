"""Samples memory of the process and the recorder's share of it, at step boundaries."""

from __future__ import annotations

import os
from pathlib import Path

from ...format.names import RECORDER_MEMORY
from ...journal import own_files
from ...journal.memory_limit import resident_bytes
from ...recorder.recorder import Recorder
from .parameters import is_doubling

_SERIES = "lanescope/rss"
"""Resident set size in bytes."""

_MAPS = Path("/proc/self/maps")


class Memory:
    """Samples the resident set size at each step, and the recorder's share at steps 0, 1, 2, 4, ...

    The share is an upper bound: memory added by its start, with its modules and engine, and its
    mapped journals, some of whose pages may be unused.
    """

    def __init__(self, before: int) -> None:
        self._before = before
        self._added = 0

    def started(self) -> None:
        """Takes memory beyond `before` as the recorder's, once recording has begun."""
        self._added = max(0, resident_bytes() - self._before)

    def sample(self, recorder: Recorder) -> None:
        """Records both now."""
        total = resident_bytes()
        if not total:
            return
        recorder.value(_SERIES, float(total))
        step, folder = recorder.step, recorder.folder
        if folder is not None and is_doubling(step):
            recorder.value(RECORDER_MEMORY, float(self._added + _mapped(folder)))


def _mapped(folder: Path) -> int:
    """Returns the mapped bytes of files below `folder`."""
    inside = os.fsencode(f"{folder.resolve()}{os.sep}")
    total = 0
    for line in own_files.read(_MAPS).splitlines():
        if inside in line:
            low, _, high = line.partition(b" ")[0].partition(b"-")
            total += int(high, 16) - int(low, 16)
    return total
