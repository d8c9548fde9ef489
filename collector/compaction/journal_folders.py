"""Finds the journals of a run, and whether their processes still write to them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ..format.file_names import JOURNAL_FOLDER
from . import manifest as manifests
from .reader import JournalError, read_process_file

UNREADABLE = "unreadable-"
"""Prefix of the folder of a journal that was set aside."""


def is_abandoned(run: Path) -> bool:
    """Returns True if journals are left, their processes have ended, and no one converts them now.

    Writes nothing. A process of another host counts as alive, as for `advance`.
    """
    try:
        latest = {pid_of(folder): folder for folder in journal_folders(run)}
        alive = any(not has_ended(folder) for folder in latest.values())
        left = any((run / JOURNAL_FOLDER).iterdir())  # those set aside too
        return left and not alive and not manifests.is_locked(run)
    except (OSError, ValueError):  # a folder was removed just now, or is not a journal's
        return False


def journal_folders(run: Path) -> list[Path]:
    """Returns the folder of each journal, by start: those of parents before their children's."""
    journal = run / JOURNAL_FOLDER
    if not journal.is_dir():
        return []
    found = [f for f in journal.iterdir() if f.is_dir() and not f.name.startswith(UNREADABLE)]
    # The start follows the process id in the name.
    return sorted(found, key=lambda f: int(f.name.partition("-")[2] or 0))


def has_ended(folder: Path) -> bool:
    """Returns True if the process closed its journal or has ended."""
    try:
        process = read_process_file(folder)
    except JournalError:
        return not is_alive(pid_of(folder))
    if process["closed"]:
        return True
    # On another host, the id belongs to another process.
    return process["host"] == socket.gethostname() and not is_alive(int(process["pid"]))


def pid_of(folder: Path) -> int:
    """Returns the id of the process that wrote a journal."""
    return int(folder.name.partition("-")[0])


def is_alive(pid: int) -> bool:
    """Returns True if a process of this host still runs, also another user's; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"
