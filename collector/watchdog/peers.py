"""Shares the rest states of the processes of a run, which may wait for each other.

A resting process writes its state into its journal at every look. Processes that wait for it read
the state.
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
from .rest import RestState

REST_FILE = "rest"
_NOTE = struct.Struct("<qqq")


@dataclass(frozen=True)
class RestNote:
    """Last state noted by a process."""

    looked_ns: int  # on its own clock
    rested_ns: int
    state: RestState


def write_note(folder: Path, note: RestNote) -> None:
    """Writes this process's state."""
    with contextlib.suppress(OSError):
        data = _NOTE.pack(note.looked_ns, note.rested_ns, note.state)
        own_files.write(folder / REST_FILE, data, 0)  # in place: never empty for readers


def read_note(folder: Path) -> RestNote | None:
    """Returns the last state noted by a process; None: it noted none."""
    try:
        looked, rested, state = _NOTE.unpack(own_files.read(folder / REST_FILE))
        return RestNote(looked, rested, RestState(state))
    except (OSError, ValueError, struct.error):
        return None


class Peers:
    """Other processes of a run, for a process that waits for them."""

    def __init__(self, own: Path) -> None:
        self._own = own
        self._seen: dict[Path, int] = {}  # `looked_ns` of each, as read last

    def ranks_rest(self, world_size: int, own: RestState, enough_ns: int) -> bool:
        """Returns True if no rank can continue: all rest or have ended, some in a collective.

        False if the state of one is not known: it has not started, writes to another file system,
        or has not looked since the last call.
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
                RestState.closed if place is None else self._state(place, enough_ns)
                for place in places
            ),
        ]
        waits = {RestState.collective, RestState.threads, RestState.closed}
        return len(latest) == world_size and RestState.collective in found and waits >= {*found}

    def children_rest(self, enough_ns: int) -> bool:
        """Returns True if no child process can continue and one of them is stuck for good."""
        found = {
            self._state(folder, enough_ns)
            for folder, process in self._processes()
            if process.get("parent_pid") == os.getpid() and not _gone(folder)
        }
        return RestState.closed in found and found <= {RestState.closed, RestState.process}

    def _ended_ranks(self) -> set[int]:
        """Returns the ranks of this job whose process has ended and is compacted."""
        try:
            own = read_process_file(self._own)
            known = manifest.load_manifest(self._own.parent.parent)["processes"]
        except (JournalError, OSError, ValueError, LookupError):
            return set()
        return {
            int(one["rank"])
            for one in known
            # A process that ended before this one began belongs to another attempt of the job.
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

    def _state(self, folder: Path, enough_ns: int) -> RestState | None:
        """Returns the state of another process that rests for `enough_ns`; None: it may go on."""
        note = read_note(folder)
        if _gone(folder):
            return RestState.closed if note is None else note.state or RestState.closed
        if note is None:
            return None
        before, self._seen[folder] = self._seen.get(folder), note.looked_ns
        fresh = before is not None and before != note.looked_ns
        return note.state if fresh and note.rested_ns >= enough_ns and note.state else None


def _gone(folder: Path) -> bool:
    """Returns True if a process has ended or closed its journal."""
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
