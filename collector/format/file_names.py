"""Names of the files and folders of a run."""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
JOURNAL_FOLDER = "journal"
LOCK_FILE = ".lock"
PART_CATALOGUE = "catalogue.parquet"
"""What opening a run needs to know of its files; see `catalogue`."""

_SHARED = "short"
"""Takes the place of the ordinal in the folder of files that short threads of a process share."""

SHORT_THREAD = "short_thread"
"""Column of such a file, behind those of its table: the thread of the row."""

_RANK_FILE = re.compile(r"rank=([0-9]{5,7})/([a-z]+)(?:-[0-9]{5,})?\.parquet")
_THREAD_FILE = re.compile(
    rf"rank=([0-9]{{5,7}})/thread=([0-9]{{1,10}}-(?:[0-9]{{1,10}}|{_SHARED}))/([a-z]+)-[0-9]{{5,}}\.parquet"
)


def rank_folder(rank: int) -> str:
    """Returns the folder of one rank: `rank=00003`."""
    return f"rank={rank:05d}"


def thread_folder(thread: str) -> str:
    """Returns the folder of one thread within its rank: `thread=4120-0`."""
    return f"thread={thread}"


def shared_folder(pid: int) -> str:
    """Returns the folder of files that short threads of a process share: `thread=4120-short`."""
    return thread_folder(f"{pid}-{_SHARED}")


def is_shared(thread: str) -> bool:
    """Returns True for what `named_parts` gives as the thread of a file that several share."""
    return thread.endswith(f"-{_SHARED}")


def thread_id(pid: int, ordinal: int) -> str:
    """Returns a thread's identity within a run: process id and ordinal within the process."""
    return f"{pid}-{ordinal}"


def part_file(table: str, part: int) -> str:
    """Returns the file of one part of a table: `op-00000.parquet`."""
    return f"{table}-{part:05d}.parquet"


def named_parts(path: str) -> tuple[int, str | None, str] | None:
    """Returns (rank, thread or None, table) of the path of a part; None for another path.

    `4120-short` is the thread of a file that short threads of process 4120 share.
    """
    if match := _THREAD_FILE.fullmatch(path):
        rank, thread, table = match.groups()
        return int(rank), thread, table
    if match := _RANK_FILE.fullmatch(path):
        return int(match[1]), None, match[2]
    return None
