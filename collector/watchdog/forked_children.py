"""Finds forked processes that wait for a lock for good, though they record nothing (Linux).

A forked process has only the thread that forked it. Where all its threads wait, without a timeout,
for a thread of their own process (`ThreadSample.sleeps`), none can wake another: a lock that was
held when the process was forked is never released in it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ..format.names import FORKED_LOCK
from ..journal import own_files
from .thread_states import ProcessSample

_COMPACTOR = b"lanescope.collector.session.compactor_process"
"""Among the arguments of the process that compacts."""


def stuck_children(folder: Path) -> list[dict[str, Any]]:
    """Returns an entry of a dump for each; those with a journal beside `folder` have their own."""
    recorded = {one.name.partition("-")[0] for one in folder.parent.iterdir()}
    return [
        {
            "native_id": pid,
            "name": f"process {pid}",
            "ordinal": None,
            "cpu": 0.0,
            "frames": [],
            "waiting": FORKED_LOCK,
        }
        for pid in _children()
        if str(pid) not in recorded and _is_fork(pid) and _is_stuck(pid)
    ]


def is_alone() -> bool:
    """Returns True if this process has no child that runs, but those of the recorder."""
    for pid in _children():
        with contextlib.suppress(OSError):
            command = own_files.read(f"/proc/{pid}/cmdline")  # empty: it has ended
            if command and _COMPACTOR not in command.split(b"\0"):
                return False
    return True


def _children() -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):  # kernels may lack the file
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError):
                found += map(int, own_files.read(f"/proc/self/task/{task}/children").split())
    return found


def _is_fork(pid: int) -> bool:
    """Returns True if a child still runs this program: it started no other."""
    with contextlib.suppress(OSError):
        return own_files.read(f"/proc/{pid}/cmdline") == own_files.read("/proc/self/cmdline")
    return False


def _is_stuck(pid: int) -> bool:
    threads = ProcessSample.of(0, Path(f"/proc/{pid}")).threads.values()
    return bool(threads) and all(thread.sleeps for thread in threads)
