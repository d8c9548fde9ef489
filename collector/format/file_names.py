"""Names of the files and folders of a run."""

from __future__ import annotations

MANIFEST = "manifest.json"
JOURNAL_FOLDER = "journal"
LOCK_FILE = ".lock"


def rank_folder(rank: int) -> str:
    """Returns the folder of one rank: `rank=00003`."""
    return f"rank={rank:05d}"


def thread_folder(thread: str) -> str:
    """Returns the folder of one thread within its rank: `thread=4120-0`."""
    return f"thread={thread}"


def thread_id(pid: int, ordinal: int) -> str:
    """Returns a thread's identity within a run: process id and ordinal within the process."""
    return f"{pid}-{ordinal}"


def part_file(table: str, part: int) -> str:
    """Returns the file of one part of a table: `op-00000.parquet`."""
    return f"{table}-{part:05d}.parquet"
