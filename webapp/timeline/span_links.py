"""Which slice belongs to which: rows of tables to slices, forward ops to their backward nodes, a
collective to the same one on other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.forward_ops import BACKWARD, maker
from lanescope.webapp.timeline.lanes import COLLECTIVES, THREAD_LANE, Lane
from lanescope.webapp.timeline.spans import AXIS_END, SPAN_TABLES
from lanescope.webapp.timeline.timeline import Timeline

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@dataclass(frozen=True)
class Place:
    """Where a slice is in the timeline, and how long it is there."""

    lane: int
    row: int
    ref: int
    start_ns: int
    end_ns: int


def slice_of(timeline: Timeline, lane: Lane, table: str, position: int) -> Place | None:
    """Returns the slice of a lane that row `position` of its table became."""
    index = timeline.index
    rows = index.lane_rows[lane.id]
    base = index.row_begin[rows[0]]
    for row in rows:
        if index.arrays["row_table"][row] == SPAN_TABLES.index(table):
            begin, end = index.row_begin[row], index.row_end[row]
            at = np.flatnonzero(index.arrays["source"][begin:end] == position)
            if len(at):
                flat = begin + int(at[0])
                low, high = int(index.slices.start[flat]), int(index.slices.end[flat])
                return Place(lane.id, row - rows[0], flat - base, low, high)
    return None


def autograd_partner(timeline: Timeline, rank: int, op: dict[str, Any]) -> Place | None:
    """Returns the backward node that a forward op made, or the forward op that made a backward
    node.

    They share a sequence number (`forward_ops.maker`). A composite op (aten::linear) made what
    the ops within it made.
    """
    if op["sequence"] is None:
        return None
    columns = ["scope", "name", "start_ns", "duration_ns", "thread"]
    table = timeline.run.events("op", rank, columns=columns, equal=("sequence", op["sequence"]))
    rows = table.to_pylist()
    found = None
    for k, node in enumerate(rows):
        if node["scope"] != BACKWARD:
            continue
        made_by = maker(node, rows)
        if made_by is None:
            continue
        if all(op[name] == node[name] for name in ("thread", "start_ns", "name", "scope")):
            found = made_by
        elif op["scope"] != BACKWARD and _within(rows[made_by], op):
            found = k
    if found is None:
        return None
    lane = lane_of_thread(timeline, rank, rows[found]["thread"])
    return None if lane is None else _slice_at(timeline, lane, rows[found])


def _slice_at(timeline: Timeline, lane: Lane, op: dict[str, Any]) -> Place | None:
    """The slice of a lane that an op became, by its name and extent: no table is read for it."""
    index = timeline.index
    rows = index.lane_rows[lane.id]
    name = index.names.index(op["name"])
    start = min(max(op["start_ns"], 0), AXIS_END)
    length = op["duration_ns"]
    until = timeline.run.duration_ns if length is None else op["start_ns"] + length
    end = min(max(until, start), AXIS_END)
    for row in rows:
        if index.arrays["row_table"][row] == SPAN_TABLES.index("op"):
            begin = index.row_begin[row]
            starts = index.slices.start[begin : index.row_end[row]]
            low, high = (int(starts.searchsorted(start, side=side)) for side in _SIDES)
            for flat in range(begin + low, begin + high):
                if (index.slices.end[flat], index.slices.name[flat]) == (end, name):
                    return Place(
                        lane.id, row - rows[0], flat - index.row_begin[rows[0]], start, end
                    )
    return None


def _within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """True if one op is within another of the same thread, or is the same."""
    if inner["thread"] != outer["thread"] or inner["start_ns"] < outer["start_ns"]:
        return False
    if outer["duration_ns"] is None:
        return True
    end = inner["start_ns"] + (inner["duration_ns"] or 0)
    return bool(end <= outer["start_ns"] + outer["duration_ns"])


def same_collective(timeline: Timeline, call: dict[str, Any]) -> list[tuple[int, str, Place]]:
    """Returns the call at the same position of the same process group on each rank: (rank, name,
    place).

    Sends and receives have no such counterpart: their positions count per rank.
    """
    if call["peer"] is not None:
        return []
    found = []
    for lane in timeline.index.lanes:
        if lane.kind != COLLECTIVES or lane.process_group != call["group"]:
            continue
        rows = timeline.run.events("collective", lane.rank, columns=["group", "sequence", "name"])
        same = pc.and_(
            pc.equal(rows["sequence"], pa.scalar(call["sequence"], pa.int64())),
            pc.equal(rows["group"].cast(pa.string()), pa.scalar(call["group"], pa.string())),
        ).fill_null(False)
        for position in np.flatnonzero(same.to_numpy()).tolist():
            place = slice_of(timeline, lane, "collective", position)
            if place is not None:
                found.append((lane.rank, str(rows["name"][position].as_py()), place))
    return found


def lane_of_thread(timeline: Timeline, rank: int, thread: str) -> Lane | None:
    """Returns the lane of a thread."""
    for lane in timeline.index.lanes:
        if (lane.kind, lane.rank, lane.thread) == (THREAD_LANE, rank, thread):
            return lane
    return None
