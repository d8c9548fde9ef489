"""Describes the system call in which a thread of this process waits (Linux).

Read only when the watchdog writes a dump. Names of files are left out.
"""

from __future__ import annotations

import contextlib
import os
import platform

from ..journal import own_files

_NAMES = {
    "read": ("a read of {}", 0, 63),
    "pread": ("a read of {}", 17, 67),
    "readv": ("a read of {}", 19, 65),
    "write": ("a write to {}", 1, 64),
    "pwrite": ("a write to {}", 18, 68),
    "writev": ("a write to {}", 20, 66),
    "open": ("the opening of a file", 2, None),
    "openat": ("the opening of a file", 257, 56),
    "fsync": ("a file to be on disk", 74, 82),
    "fdatasync": ("a file to be on disk", 75, 83),
    "flock": ("a lock on a file", 73, 32),
    "fcntl": ("a lock on a file", 72, 25),
    "poll": ("input", 7, None),
    "ppoll": ("input", 271, 73),
    "select": ("input", 23, None),
    "pselect": ("input", 270, 72),
    "epoll_wait": ("input", 232, None),
    "epoll_pwait": ("input", 281, 22),
    "recvfrom": ("the network", 45, 207),
    "recvmsg": ("the network", 47, 212),
    "sendto": ("the network", 44, 206),
    "sendmsg": ("the network", 46, 211),
    "accept": ("a connection", 43, 202),
    "accept4": ("a connection", 288, 242),
    "connect": ("a connection", 42, 203),
    "wait4": ("the end of another process", 61, 260),
    "waitid": ("the end of another process", 247, 95),
    "nanosleep": ("the end of a sleep", 35, 101),
    "clock_nanosleep": ("the end of a sleep", 230, 115),
}
"""System call -> words, number on x86_64, number on aarch64. A futex may be any lock: left out."""

_MACHINES = {"x86_64": 1, "aarch64": 2}


def _by_number() -> dict[int, str]:
    column = _MACHINES.get(platform.machine())
    if column is None:
        return {}
    found = ((entry[column], entry[0]) for entry in _NAMES.values())
    return {int(number): str(words) for number, words in found if number is not None}


_WORDS = _by_number()


def waits_for(native_id: int) -> str:
    """Returns the cause of a wait: `a read of a pipe`; empty: the thread runs, or not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = own_files.read(f"/proc/self/task/{native_id}/syscall").split()
        words = _WORDS.get(int(fields[0]), "")  # the file may say "running"
        return words.format(_kind_of(int(fields[1], 16))) if "{}" in words else words
    return ""


def _kind_of(file: int) -> str:
    try:
        target = os.readlink(f"/proc/self/fd/{file}")
    except OSError:
        return "a file"
    kind = target.partition(":")[0]
    return {"socket": "a socket", "pipe": "a pipe", "anon_inode": "a file"}.get(kind, "a file")
