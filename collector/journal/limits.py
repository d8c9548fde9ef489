"""How much memory there is, and what a recording may take of it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from . import own_files
from .segment_ring import SHARE, SMALLEST_SEGMENT_BYTES

SMALLEST_BUFFER_BYTES = 2 * SHARE * SMALLEST_SEGMENT_BYTES
"""With less, a few threads would leave no room for anything but their open segments."""

PART_OF_MEMORY = 0.8

_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


def check_buffer(size: int, memory: int | None = None) -> None:
    """Whether that many bytes of journals can be kept. Raises ValueError, in one sentence.

    They are files, but a page cache that cannot hold them makes the recorded program wait for the
    disk, and on a tmpfs they are memory.
    """
    if size < SMALLEST_BUFFER_BYTES:
        raise ValueError(
            f"keep-last is {size:,} bytes; it must be at least {SMALLEST_BUFFER_BYTES:,}"
        )
    memory = memory_bytes() if memory is None else memory
    if size > PART_OF_MEMORY * memory:
        raise ValueError(
            f"keep-last is {size:,} bytes, more than {PART_OF_MEMORY:.0%} of the {memory:,} bytes "
            f"of memory here; choose at most {int(PART_OF_MEMORY * memory):,}"
        )


def resident_bytes() -> int:
    """Resident set size of this process; 0 where the system does not tell it cheaply."""
    try:
        pages = int(own_files.read("/proc/self/statm").split()[1])
    except OSError:
        return 0
    return pages * mmap.PAGESIZE


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Physical memory, or what this process's control group may have of it where that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _groups(cgroup):
        for name in _LIMITS:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():  # "max" where there is none
                found.append(int(text))
    return min(found)


def _groups(cgroup: Path) -> list[Path]:
    """Folders that may bound this process: the root as a container sees it, and its own groups."""
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
