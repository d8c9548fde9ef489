"""Reads the recorder's clock, and identifies clocks that processes share."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

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
