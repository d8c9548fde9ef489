"""Kinds, file names and the format version: the part of the contract that needs no Arrow.

The recorder runs inside other people's programs, so it must not load pyarrow there; `schema`
re-exports everything here.
"""

from __future__ import annotations

import enum

FORMAT_VERSION = 1
"""Version written by this code. A reader accepts 1..FORMAT_VERSION and refuses what is newer."""

MANIFEST = "manifest.json"
JOURNAL_FOLDER = "journal"
LOCK_FILE = ".lock"


class OpScope(enum.IntEnum):
    """What made an op event. The number is what the journal holds, the name what Parquet holds."""

    function = 0  # an operator of the dispatcher
    backward = 1  # an autograd node
    user = 2  # torch.profiler.record_function
    compiled = 3  # a torch.compile region
    kernel = 4  # device activity


class PhaseKind(enum.IntEnum):
    """Phases with a meaning of their own; `user` is whatever the program named itself."""

    user = 0
    forward = 1
    backward = 2
    optimizer = 3
    data = 4
    evaluation = 5
    mark = 6  # an instant


class SyncKind(enum.IntEnum):
    """Thread events. `start` is on the parent, `begin` on the child, `join` on the waiter."""

    thread_start = 0
    thread_begin = 1
    thread_end = 2
    thread_join = 3


class ThreadKind(enum.IntEnum):
    """What a thread is, for grouping lanes."""

    main = 0  # the process's first thread
    python = 1  # started through Python
    native = 2  # known only to the operating system (autograd, collective backends)


def rank_folder(rank: int) -> str:
    """Folder of one rank: `rank=00003`."""
    return f"rank={rank:05d}"


def thread_folder(thread: str) -> str:
    """Folder of one thread within its rank: `thread=4120-0`."""
    return f"thread={thread}"


def thread_id(pid: int, ordinal: int) -> str:
    """Identity of a thread within a run: process id and order of appearance in the process."""
    return f"{pid}-{ordinal}"


def part_file(table: str, part: int) -> str:
    """File of one table's part: `op-00000.parquet`."""
    return f"{table}-{part:05d}.parquet"
