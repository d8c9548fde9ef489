"""The next slice of those that are looked for, from one place of the timeline on.

Slices are gone through in the order of their start, then lane, then row, over all lanes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from lanescope.webapp.timeline.search_marks import Wanted
from lanescope.webapp.timeline.spans import SAMPLES
from lanescope.webapp.timeline.timeline import Timeline

CHUNK = 1 << 16
"""Slices of a row looked at in one go: a match is mostly near, and then the rest is not read."""

Key = tuple[int, int, int]
"""(start in ns, lane, row)."""


def find(timeline: Timeline, wanted: Wanted, place: Key, forward: bool) -> dict[str, Any] | None:
    """The slice after (or before) `place` that is wanted; None: there is none.

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
    timeline: Timeline, row: int, wanted: Wanted, place: Key,
    here: tuple[int, int], forward: bool, best: Key | None,
) -> int | None:  # fmt: skip
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
        low, high = (at, min(at + CHUNK, len(starts))) if forward else (max(at - CHUNK, 0), at)
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
