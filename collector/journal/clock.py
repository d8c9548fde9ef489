"""The recorder's clock, and what tells whether two processes share it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

now = time.monotonic_ns
"""Nanoseconds of CLOCK_MONOTONIC: shared by all processes of a host, never set back."""


def wall_minus_monotonic_ns() -> int:
    """Offset of the wall clock."""
    return wall_offset()[0]


def wall_offset() -> tuple[int, int]:
    """Offset of the wall clock from the tightest of a few readings, ns, and what it may be off."""
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
    """Equal for processes that read the very same monotonic clock.

    The kernel's boot id names the clock; a time namespace shifts it, so it belongs to the name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        return f"{platform.node()}-{platform.system()}"
    return f"{boot}/{namespace}"
