"""Measures memory, and checks how much of it a recording may use."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from . import own_files
from .segment_ring import BUFFER_PARTS, MIN_SEGMENT_BYTES

MIN_BUFFER_BYTES = 2 * BUFFER_PARTS * MIN_SEGMENT_BYTES
"""With less, the open segments of a few threads would fill the buffer."""

MAX_PART_OF_MEMORY = 0.8

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def check_buffer(size: int | None, memory: int | None = None) -> None:
    """Raises ValueError if journals of `size` bytes do not fit into `memory` bytes.

    None is unlimited. Journals are files, but if the page cache cannot hold them, the recorded
    program waits for the disk; on a tmpfs they are memory.
    """
    if size is None:
        return
    if size < MIN_BUFFER_BYTES:
        raise ValueError(f"keep-last is {size:,} bytes; it must be at least {MIN_BUFFER_BYTES:,}")
    memory = memory_bytes() if memory is None else memory
    most = int(MAX_PART_OF_MEMORY * memory)
    if size > most:
        raise ValueError(
            f"keep-last is {size:,} bytes, more than {MAX_PART_OF_MEMORY:.0%} of the {memory:,} "
            f"bytes of memory here; choose at most {most:,}"
        )


def resident_bytes() -> int:
    """Returns the resident set size of this process; 0 without /proc."""
    try:
        pages = int(own_files.read("/proc/self/statm").split()[1])
    except OSError:
        return 0
    return pages * mmap.PAGESIZE


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Returns the physical memory, or the limit of this process's control group if less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _groups(cgroup):
        for name in _LIMITS:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # "max": no limit
                found.append(int(text))
    return min(found)


def _groups(cgroup: Path) -> list[Path]:
    """Returns folders whose limits apply: the root as seen by a container, and its own groups."""
    folders = [cgroup]
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            own = cgroup / path.lstrip("/")
            folders += [own, *(p for p in own.parents if cgroup in p.parents)]
    return folders
