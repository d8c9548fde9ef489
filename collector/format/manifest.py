"""Types of manifest.json."""

from __future__ import annotations

from typing import TypedDict

STOPPED = "stopped from outside"
"""Prefix of the note where a signal stopped the recorded command; ": SIGTERM ..." follows."""


class Clock(TypedDict):
    """Maps a process's monotonic clock to the run's axis: axis = local + offset + drift."""

    offset_ns: int  # added to a local time
    drift_ppb: float  # parts per billion by which the local clock runs slow
    uncertainty_ns: int  # remaining error of the mapping, half-width
    calibrated: bool  # False: aligned by wall clock only, or not at all
    host: str  # boot id and time namespace: equal for processes that share the clock exactly


class AxisReference(TypedDict):
    """The clock of the run's axis: rank 0's where clocks were compared, else that of the first
    compacted process."""

    clock_identity: str
    wall_minus_monotonic_ns: int


class Named(TypedDict, total=False):
    """What is known of some processes only."""

    worker: str  # name of an RPC worker, or class and method of a Ray task
    ended_thread: int  # native_id of the thread whose signal ended the process, as SIGSEGV
    gone: bool  # had ended when its log was read, and left it open: killed, or os._exit


class Process(Named):
    """One recorded process, as the manifest lists it."""

    rank: int
    pid: int
    parent_pid: int
    role: str  # "rank", or "child" for a process started by a rank (data-loader worker, fork)
    host: str  # host name
    engine: str
    start_ns: int
    end_ns: int
    closed: bool  # False: the process died, the log ends where it ended
    ended: str  # "exit", "exception", "abort" or as in "signal SIGTERM"; empty: not known (SIGKILL)
    exception: str  # last uncaught exception, "ValueError: ... (file.py:12)"; empty: none
    argv: list[str]
    python: str
    torch: str
    modules_root: str  # class of the outermost module, empty where none was called
    clock: Clock
    coverage: dict[str, int]  # reason -> count of dropped, filtered or unseen events


class Group(TypedDict):
    """A process group, as its ranks describe it."""

    ranks: list[int]  # global ranks, by their position in the group
    description: str  # default_pg, mesh_dp, ... as torch.distributed describes it; may be empty


class SharedFile(TypedDict, total=False):
    """Who shares a file."""

    threads: dict[str, int]  # thread -> its rows, in the order of the file; only where several do


class File(SharedFile):
    """Size, rows and hash of one file of the run."""

    bytes: int
    rows: int
    sha256: str


class Manifest(TypedDict):
    """manifest.json. Written before recording (complete false) and after it."""

    format: int
    id: str  # unique id of the run
    created: str  # ISO 8601, UTC
    command: list[str]
    level: str
    options: dict[str, str | int | float | bool | list[str | int] | None]
    world_size: int
    complete: bool  # every expected rank is there and its processes were closed
    exit_status: int | None  # of the recorded command, where one process knew it
    notes: list[str]  # sentences for the user: what is missing and why
    axis: AxisReference | None  # None while no process is listed
    processes: list[Process]
    groups: dict[str, Group]  # by the name used in the collective table
    files: dict[str, File]  # by path relative to the run
