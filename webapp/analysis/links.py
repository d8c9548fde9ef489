"""Addresses within the page, for whoever finds something worth a look.

An address names the window in ns from the start of the run, and may name one slice by its lane's
key and its start: `/timeline?t=1200-3400&at=0%2F4120-0@1500`. The page turns that into a selection
(`webapp.places`), so an analysis need not know how lanes are drawn.
"""

from __future__ import annotations

from urllib.parse import quote

MARGIN = 2
"""On each side, the window shows one part in this many of what it is about."""

SHORTEST_NS = 50


def timeline_address(
    start_ns: int, end_ns: int, duration_ns: int, at: tuple[str, int] | None = None
) -> str:
    """Address of [start_ns, end_ns) in a run of `duration_ns`, with some of its surroundings.

    `at` = (key of a lane, start in ns of a slice on it) also selects that slice.
    """
    margin = max((end_ns - start_ns) // MARGIN, SHORTEST_NS)
    low, high = max(0, start_ns - margin), min(max(duration_ns, end_ns), end_ns + margin)
    address = f"/timeline?t={low}-{high}"
    return address if at is None else f"{address}&at={quote(at[0], safe='')}@{at[1]}"


def thread_lane(rank: int, thread: str) -> str:
    """Key of the lane of a thread."""
    return f"{rank}/{thread}"


def group_lane(rank: int, group: str) -> str:
    """Key of the lane of a process group's collectives on a rank."""
    return f"{rank}/collectives/{group}"
