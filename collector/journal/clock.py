"""Reads the recorder's clock, and identifies clocks that processes share."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from . import own_files

now = time.monotonic_ns
"""Returns ns of CLOCK_MONOTONIC: shared by all processes of a host, never set back."""


def wall_minus_monotonic_ns() -> int:
    """Returns the offset of the wall clock, ns."""
    return wall_offset()[0]


def wall_offset() -> tuple[int, int]:
    """Returns the offset of the wall clock and its error, ns, by the tightest of five readings."""
    best, width = 0, 2**62
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < width:
            width = after - before
            best = wall - (before + after) // 2
    return best, (width + 1) // 2


def program_start_ns() -> int:
    """Returns when this process started, ns of the wall clock, to a tick later; 0: not known."""
    try:
        stat = own_files.read("/proc/self/stat").rpartition(b")")[2].split()
        tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(stat[19]) * tick_ns
    except (OSError, ValueError, IndexError, AttributeError):
        return 0
    return time.time_ns() - age + tick_ns


def clock_identity() -> str:
    """Returns a name that is equal for processes that read the same monotonic clock.

    It consists of the kernel's boot id and the time namespace, which shifts the clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        return f"{platform.node()}-{platform.system()}"
    return f"{boot}/{namespace}"
