"""Which slice belongs to which: rows of tables to slices, forward ops to their backward nodes, a
collective to the same one on other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector import schema
from lanescope.webapp.lanes import COLLECTIVES, THREAD, Lane
from lanescope.webapp.slices import SOURCES
from lanescope.webapp.timeline import Timeline

_BACKWARD = schema.OpScope.backward.name


@dataclass(frozen=True)
class Place:
    """Where a slice is in the timeline, and how long it is there."""

    lane: int
    row: int
    ref: int
    start_ns: int
    end_ns: int


def slice_of(timeline: Timeline, lane: Lane, table: str, position: int) -> Place | None:
    """The slice of a lane that row `position` of its table became."""
    index = timeline.index
    rows = index.lane_rows[lane.id]
    base = index.row_begin[rows[0]]
    for row in rows:
        if index.arrays["row_table"][row] == SOURCES.index(table):
            begin, end = index.row_begin[row], index.row_end[row]
            at = np.flatnonzero(index.arrays["source"][begin:end] == position)
            if len(at):
                flat = begin + int(at[0])
                low, high = int(index.slices.start[flat]), int(index.slices.end[flat])
                return Place(lane.id, row - rows[0], flat - base, low, high)
    return None


def autograd_partner(timeline: Timeline, rank: int, op: dict[str, object]) -> Place | None:
    """The backward node that a forward op made, or the forward op that made a backward node.

    They share a sequence number, which counts per forward thread. Of several candidates the one on
    the same thread is meant, then the nearest in the right direction of time.
    """
    if op["sequence"] is None:
        return None
    columns = ["sequence", "scope", "start_ns", "thread"]
    rows = timeline.run.events("op", rank, columns=columns)
    backward = op["scope"] == _BACKWARD
    same = pc.equal(rows["sequence"], pa.scalar(op["sequence"], pa.int64()))
    is_node = pc.equal(rows["scope"].cast(pa.string()), _BACKWARD)
    chosen = pc.and_(same, pc.invert(is_node) if backward else is_node).fill_null(False)
    positions = np.flatnonzero(chosen.to_numpy())
    if not len(positions):
        return None
    found = rows.take(pa.array(positions))
    threads = found["thread"].cast(pa.string()).to_pylist()
    starts = found["start_ns"].to_pylist()
    own = int(str(op["start_ns"]))

    def fitness(k: int) -> tuple[bool, bool, int]:
        gap = own - starts[k] if backward else starts[k] - own
        return (gap < 0, threads[k] != op["thread"], abs(gap))

    best = min(range(len(positions)), key=fitness)
    lane = thread_lane(timeline, rank, threads[best])
    if lane is None:
        return None
    # Rows of a thread are consecutive, so its own table begins where it first occurs.
    first = pc.index(rows["thread"].cast(pa.string()), threads[best]).as_py()
    return slice_of(timeline, lane, "op", int(positions[best]) - first)


def same_collective(timeline: Timeline, call: dict[str, object]) -> list[tuple[int, str, Place]]:
    """The call at the same position of the same process group on each rank: (rank, name, place).

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


def thread_lane(timeline: Timeline, rank: int, thread: str) -> Lane | None:
    """The lane of a thread."""
    for lane in timeline.index.lanes:
        if (lane.kind, lane.rank, lane.thread) == (THREAD, rank, thread):
            return lane
    return None
