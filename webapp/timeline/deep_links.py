"""From an address that names a slice by lane and start to one that the timeline can select.

Analyses write `at=<lane's key>@<start in ns>` (see `analysis.links`); the timeline knows slices as
`sel=<lane>.<row>.<slice>`, numbers that only the index has.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np

from lanescope.webapp.timeline.timeline import Timeline


def selecting(timeline: Timeline, address: str) -> str:
    """The same address with `sel` in the place of `at`; without either where nothing is there."""
    parts = urlsplit(address)
    pairs = parse_qsl(parts.query)
    found = None
    for name, value in pairs:
        key, _, start = value.rpartition("@")
        if name == "at" and start.isascii() and start.isdecimal() and len(start) < 20:
            found = slice_at(timeline, key, int(start))
    kept = [(name, value) for name, value in pairs if name != "at"]
    if found is not None:
        kept = [pair for pair in kept if pair[0] != "sel"]
        kept.append(("sel", ".".join(map(str, found))))
    return parts._replace(query=urlencode(kept)).geturl()


def slice_at(timeline: Timeline, key: str, start_ns: int) -> tuple[int, int, int] | None:
    """Lane, row and number of the innermost slice of a lane that starts at an instant."""
    index = timeline.index
    lane = next((lane for lane in index.lanes if lane.key == key), None)
    if lane is None:
        return None
    rows = index.lane_rows[lane.id]
    base = index.row_begin[rows[0]]
    for row in reversed(rows):
        begin, end = index.row_begin[row], index.row_end[row]
        at = begin + int(np.searchsorted(index.slices.start[begin:end], start_ns))
        if at < end and int(index.slices.start[at]) == start_ns:
            return lane.id, row - rows[0], at - base
    return None
