"""Memory of the process, and what of it is the recorder's, sampled at step boundaries."""

from __future__ import annotations

import os
from pathlib import Path

from ..kinds import RECORDER_MEMORY
from ..recorder import Recorder

SERIES = "lanescope/rss"
"""Resident set size in bytes."""

_STATM, _SMAPS = Path("/proc/self/statm"), Path("/proc/self/smaps")


class Memory:
    """Samples the resident set size at each step, the recorder's part at steps 0, 1, 2, 4, 8, ...:
    to find that, the system goes through all that the process has mapped (some milliseconds).

    The recorder's part is what its start added, with its modules and the engine, and the pages of
    its journals that are in memory now.
    """

    def __init__(self) -> None:
        self._before = resident()
        self._added = 0

    def started(self) -> None:
        """The recording has begun: what was added since this was made is the recorder's."""
        self._added = max(0, resident() - self._before)

    def sample(self, recorder: Recorder) -> None:
        """Record both now; nothing where the system does not tell it cheaply."""
        total = resident()
        if not total:
            return
        recorder.value(SERIES, float(total))
        step, folder = recorder.step, recorder.folder
        if folder is not None and not step & (step - 1):
            recorder.value(RECORDER_MEMORY, float(self._added + _mapped(folder)))


def resident() -> int:
    """Resident set size in bytes; 0 where it is not known."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _mapped(folder: Path) -> int:
    """Bytes of files below `folder` that are mapped and in memory."""
    inside, total = os.fsencode(f"{folder.resolve()}{os.sep}"), 0
    mine = False
    with _SMAPS.open("rb") as lines:
        for line in lines:
            if line.startswith(b"Rss:"):
                total += int(line.split()[1]) * 1024 if mine else 0
            elif b"-" in line.split(b" ", 1)[0]:
                mine = inside in line
    return total
