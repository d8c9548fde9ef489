"""What lies at a place of a row, to the nanosecond: tiles only hold what is needed for drawing."""

from __future__ import annotations

from typing import Any

import numpy as np

from lanescope.webapp.timeline.spans import SAMPLES
from lanescope.webapp.timeline.styles import STYLES
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED
from lanescope.webapp.timeline.timeline import NoSuch, Timeline


def look(
    timeline: Timeline, lane_id: int, row: int, window: tuple[int, int], shorter: int | None = None
) -> dict[str, Any]:
    """The slices of a row that touch [t0, t1): the longest, how many begin there, how much of the
    window they cover.

    `shorter` leaves out those that last at least so many ns: what a bucket of a tile stands for.
    `ref` is null where there is none. NoSuch where there is no such lane or row of slices.
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
