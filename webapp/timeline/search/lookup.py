"""Finds slices: by an address, by a place of a row, and the next one that a search matches.

Analyses write `at=<lane's key>@<start in ns>` (see `analysis.links`); the timeline knows slices as
`sel=<lane>.<row>.<slice>`, numbers that only the index has.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np

from lanescope.webapp.timeline.search.marks import SearchRequest
from lanescope.webapp.timeline.spans import SAMPLES
from lanescope.webapp.timeline.styles import STYLES
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED
from lanescope.webapp.timeline.timeline import NoSuch, Timeline


def selecting(timeline: Timeline, address: str) -> str:
    """Returns the same address with `sel` in the place of `at`; without either where nothing is
    there."""
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
    """Returns lane, row and number of the innermost slice of a lane that starts at an instant."""
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


LOOKUP_ROWS = 1 << 16
"""Slices of a row looked at in one go: a match is mostly near, and then the rest is not read."""

Key = tuple[int, int, int]
"""(start in ns, lane, row)."""


def find(
    timeline: Timeline, wanted: SearchRequest, place: Key, forward: bool
) -> dict[str, Any] | None:
    """Returns the slice after (or before) `place` that is wanted; None: not found.

    The answer is like that of `span_details.nearest`.
    """
    index = timeline.index
    best: Key | None = None
    found = -1
    for lane in index.lanes:
        for number, row in enumerate(index.lane_rows[lane.id]):
            if index.arrays["row_table"][row] == SAMPLES:
                continue
            at = _in_row(timeline, row, wanted, place, (lane.id, number), forward, best)
            if at is None:
                continue
            key = (int(index.slices.start[at]), lane.id, number)
            if best is None or (key < best) == forward:
                best, found = key, at
    if best is None:
        return None
    start, lane_id, number = best
    return {
        "lane": lane_id,
        "row": number,
        "ref": found - index.row_begin[index.lane_rows[lane_id][0]],
        "start_ns": start,
        "end_ns": int(index.slices.end[found]),
        "name": index.names[int(index.slices.name[found])],
    }


def _in_row(
    timeline: Timeline,
    row: int,
    wanted: SearchRequest,
    place: Key,
    here: tuple[int, int],
    forward: bool,
    best: Key | None,
) -> int | None:
    """Position of the row's first match in that direction; None also where `best` is nearer."""
    index = timeline.index
    begin, end = index.row_begin[row], index.row_end[row]
    starts = index.slices.start[begin:end]
    # At the instant of the place itself, what comes later in the order of lanes and rows counts.
    side: Literal["left", "right"]
    if forward:
        side = "left" if here > place[1:] else "right"
    else:
        side = "right" if here < place[1:] else "left"
    at = int(np.searchsorted(starts, place[0], side=side))
    while 0 <= at <= len(starts):
        low, high = (
            (at, min(at + LOOKUP_ROWS, len(starts))) if forward else (max(at - LOOKUP_ROWS, 0), at)
        )
        if low == high:
            return None
        nearest = int(starts[low if forward else high - 1])
        if best is not None and (nearest > best[0] if forward else nearest < best[0]):
            return None
        hits = np.flatnonzero(wanted.mask(here[0], row, begin + low, begin + high))
        if len(hits):
            return begin + low + int(hits[0 if forward else -1])
        at = high if forward else low
    return None


def slices_in_window(
    timeline: Timeline, lane_id: int, row: int, window: tuple[int, int], shorter: int | None = None
) -> dict[str, Any]:
    """Returns the slices of a row that touch [t0, t1): the longest, how many begin there, how much
    of the window they cover.

    `shorter` leaves out those that last at least so many ns: those that a bucket of a tile sums up.
    `ref` is null without any. Raises NoSuch for an unknown lane or row of slices.
    """
    lane = timeline.lane(lane_id)
    index = timeline.index
    rows = index.lane_rows[lane_id]
    if not 0 <= row < lane.rows or index.arrays["row_table"][rows[row]] == SAMPLES:
        raise NoSuch(f"no row {row} of slices, lane {lane_id} has {lane.rows} rows, from 0")
    begin, end = index.row_begin[rows[row]], index.row_end[rows[row]]
    starts, ends = index.slices.start[begin:end], index.slices.end[begin:end]
    t0, t1 = window
    low, high = (int(at) for at in starts.searchsorted((t0, t1)))
    if low and ends[low - 1] > t0:  # of those before, only the last one can reach into the window
        low -= 1
    chosen = np.arange(low, high)
    lengths = ends[low:high] - starts[low:high]
    if shorter is not None:
        chosen = chosen[lengths < shorter]
        lengths = lengths[lengths < shorter]
    found: dict[str, Any] = {"lane": lane_id, "row": row, "ref": None}
    if not len(chosen):
        return found
    begins = starts[chosen]
    covered = np.minimum(ends[chosen], t1) - np.maximum(begins, t0)
    flat = begin + int(chosen[np.argmax(lengths)])
    style = int(index.slices.style[flat])
    return found | {
        "ref": flat - index.row_begin[rows[0]],
        "name": index.names[int(index.slices.name[flat])],
        "style": STYLES[style & ~STYLE_UNFINISHED],
        "start_ns": int(index.slices.start[flat]),
        "end_ns": int(index.slices.end[flat]),
        "count": int(np.count_nonzero(begins >= t0)),
        "covered_ns": int(np.maximum(covered, 0).sum()),
    }
