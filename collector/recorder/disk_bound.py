"""Keeps a recording within its disk bound: says how much of it is used, and which steps to leave
out then.

The rules are in docs/recording.md. Every process judges by its own files and by the free space of
the disk, so that no file is shared and no process waits for another.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ..format.file_names import is_shared, rank_folder, thread_folder
from ..journal import clock

SHARE_OF_FREE = 0.8
"""Of the space that is free at the start, all that a disk has to give to a recording."""

JOURNAL_BYTES = 1_000_000_000
"""Bound of a process's journal: a longer one means that compaction does not keep up."""

THIN_FROM, FULL_FROM, WHOLE_BELOW = 0.8, 1.0, 0.5
"""Shares of a bound from which on steps are left out, nothing is recorded, all is again."""

ONE_OF = 10
"""While steps are left out, one of so many is recorded."""

_PACE = 50
"""Looks take one part in so many of the time of the thread that looks."""


class DiskBound:
    """The bound of one process: `look` measures, `leaves_out` decides."""

    def __init__(self, run: Path, max_bytes: int | None, *, ring: bool) -> None:
        """`max_bytes`: of the whole run; None: no more than the free space allows. `ring`: the
        journal has a bound of its own (--keep-last)."""
        self._run, self._max_bytes, self._ring = run, max_bytes, ring
        self._free = _free_bytes(run)
        self._parts: dict[str, int] = {}  # bytes of each part file
        self._due_ns = 0
        self._thin = self.full = False

    def look(self, journal: Path, pid: int, rank: int, world_size: int) -> bool:
        """Measures, if it is time to; returns True if that changes the recording."""
        began = clock.now()
        if began < self._due_ns:
            return False
        share = max(self._shares(journal, pid, rank, world_size))
        before = self._thin, self.full
        self.full = share >= (WHOLE_BELOW if self.full else FULL_FROM)
        self._thin = share >= (WHOLE_BELOW if self._thin else THIN_FROM)
        ended = clock.now()
        self._due_ns = ended + _PACE * (ended - began)
        return before != (self._thin, self.full)

    def leaves_out(self, step: int) -> bool:
        """Returns True if a step is not recorded, for want of room."""
        return self.full or (self._thin and step % ONE_OF != 0)

    def _shares(self, journal: Path, pid: int, rank: int, world_size: int) -> list[float]:
        """Returns how much of each bound is used."""
        segments = _bytes_in(journal)
        shares = [0.0 if self._ring else segments / JOURNAL_BYTES]
        if self._free and (free := _free_bytes(self._run)) is not None:
            shares.append((self._free - free) / (SHARE_OF_FREE * self._free))
        if self._max_bytes is not None:
            own = segments + self._part_bytes(self._run / rank_folder(rank), pid)
            shares.append(own * world_size / self._max_bytes)
        return shares

    def _part_bytes(self, folder: Path, pid: int) -> int:
        """Returns the size of the files that became of this process's journal so far."""
        with contextlib.suppress(OSError):
            own = thread_folder(f"{pid}-")
            for name in filter(lambda one: one.startswith(own), os.listdir(folder)):
                for part in os.listdir(folder / name):
                    place = f"{name}/{part}"
                    # One thread's never changes; short threads are added to those they share.
                    known = place in self._parts and not is_shared(name)
                    if not part.startswith(".") and not known:
                        self._parts[place] = os.stat(folder / place).st_size
        return sum(self._parts.values())


def _bytes_in(folder: Path) -> int:
    """Returns the disk space of a folder's files; segments are longer than their contents."""
    total = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # compacted meanwhile
                total += 512 * os.stat(folder / name).st_blocks
    return total


def _free_bytes(run: Path) -> int | None:
    """Returns the free space of the run's disk; None if it is not known, as where the program has
    given up the right to read the folder."""
    try:
        found = os.statvfs(run if run.exists() else run.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
