"""How the processes of a run stand that wait for each other, each by what its watchdog has noted.

A process that is at rest writes how it stands into its journal, again and again. Whoever waits for
it reads that before he takes it for hung.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..compaction import manifest
from ..compaction.reader import JournalError, read_process_file
from ..journal import own_files
from .rest import Standing

REST_FILE = "rest"
_NOTE = struct.Struct("<qqq")


@dataclass(frozen=True)
class Note:
    """What a process noted last."""

    looked_ns: int  # when, on its own clock
    rested_ns: int
    standing: Standing


def write(folder: Path, note: Note) -> None:
    """Notes how this process stands."""
    with contextlib.suppress(OSError):
        data = _NOTE.pack(note.looked_ns, note.rested_ns, note.standing)
        own_files.write(folder / REST_FILE, data, 0)  # in place: never empty for who reads it


def read(folder: Path) -> Note | None:
    """What a process noted last; None: nothing."""
    try:
        looked, rested, standing = _NOTE.unpack(own_files.read(folder / REST_FILE))
        return Note(looked, rested, Standing(standing))
    except (OSError, ValueError, struct.error):
        return None


class Peers:
    """The other processes of a run, read again and again by one that waits for them."""

    def __init__(self, own: Path) -> None:
        self._own = own
        self._seen: dict[Path, int] = {}  # when each had looked, as read the last time

    def ranks_rest(self, world_size: int, own: Standing, enough_ns: int) -> bool:
        """Returns whether no rank can go on: all are at rest or gone, some in a collective.

        False where that is not known of one: it has not begun, is on another host that writes
        elsewhere, or has not looked since it was asked the last time.
        """
        ended = self._ended_ranks()
        latest: dict[int, tuple[int, Path | None]] = dict.fromkeys(ended, (0, None))
        for folder, process in self._processes():
            if process.get("role") == "rank":
                begun = (int(process.get("start_ns", 0)), folder)
                rank = int(process.get("rank", -1))
                if rank not in latest or begun[0] > latest[rank][0]:
                    latest[rank] = begun
        places = [place for _, place in latest.values() if place != self._own]
        found = [
            own,
            *(
                Standing.closed if place is None else self._standing(place, enough_ns)
                for place in places
            ),
        ]
        waits = {Standing.collective, Standing.threads, Standing.closed}
        return len(latest) == world_size and Standing.collective in found and waits >= {*found}

    def children_rest(self, enough_ns: int) -> bool:
        """Returns whether no process that this one started can go on, one of them for ever."""
        found = {
            self._standing(folder, enough_ns)
            for folder, process in self._processes()
            if process.get("parent_pid") == os.getpid() and not _gone(folder)
        }
        return Standing.closed in found and found <= {Standing.closed, Standing.process}

    def _ended_ranks(self) -> set[int]:
        """Ranks of this job whose process has ended and is compacted already."""
        try:
            own = read_process_file(self._own)
            known = manifest.read(self._own.parent.parent)["processes"]
        except (JournalError, OSError, ValueError, LookupError):
            return set()
        return {
            int(one["rank"])
            for one in known
            # What ended before this process began was another attempt at the job.
            if one["role"] == "rank"
            and one["host"] == own["host"]
            and one["end_ns"] > own["start_ns"]
        }

    def _processes(self) -> list[tuple[Path, dict[str, Any]]]:
        found = []
        for folder in self._own.parent.glob("*/"):
            with contextlib.suppress(JournalError):
                found.append((folder, read_process_file(folder)))
        return found

    def _standing(self, folder: Path, enough_ns: int) -> Standing | None:
        """How another process stands, if it has been at rest for long; None: it may go on."""
        note = read(folder)
        if _gone(folder):
            return Standing.closed if note is None else note.standing or Standing.closed
        if note is None:
            return None
        before, self._seen[folder] = self._seen.get(folder), note.looked_ns
        fresh = before is not None and before != note.looked_ns
        return note.standing if fresh and note.rested_ns >= enough_ns and note.standing else None


def _gone(folder: Path) -> bool:
    """Whether a process has ended, or closed its journal."""
    try:
        process = read_process_file(folder)
    except JournalError:
        return False
    if process.get("closed"):
        return True
    if process.get("host") != socket.gethostname():
        return False
    try:
        state = own_files.read(f"/proc/{int(process['pid'])}/stat").rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return True
    except (OSError, IndexError, ValueError, KeyError):
        return False
    return state == b"Z"
