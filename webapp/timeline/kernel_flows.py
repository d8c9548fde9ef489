"""What a device did for an operator, and which operator had it done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.timeline.lanes import Lane
from lanescope.webapp.timeline.span_links import Place, slice_of, thread_lane
from lanescope.webapp.timeline.timeline import Timeline

MAX_LAUNCHES = 20
"""Launches told of one operator: more arrows than this explain nothing."""

_KERNEL = schema.OpScope.kernel.name
_STREAM = schema.ThreadKind.stream.name


@dataclass(frozen=True)
class Launch:
    """The other end of a launch, and when the call was made that launched."""

    place: Place
    outgoing: bool  # what was launched; false: the operator that launched
    launch_ns: int


def launches(timeline: Timeline, lane: Lane, op: dict[str, Any]) -> list[Launch]:
    """Of a kernel or copy: the innermost operator around the call that launched it. Of another op:
    the first MAX_LAUNCHES kernels and copies that calls within it launched, in order of the calls.

    Nothing where the call is not known, or no operator around it was recorded.
    """
    if op["scope"] == _KERNEL:
        place = _launcher(timeline, lane.rank, op)
        return [] if place is None else [Launch(place, False, op["launch_ns"])]
    found = sorted(_launched(timeline, lane, op), key=lambda one: one[0])[:MAX_LAUNCHES]
    return [
        Launch(place, True, launch_ns)
        for launch_ns, stream, position in found
        if (place := slice_of(timeline, stream, "op", position)) is not None
    ]


def _launcher(timeline: Timeline, rank: int, kernel: dict[str, Any]) -> Place | None:
    lane = thread_lane(timeline, rank, kernel["launch_thread"])
    if lane is None or kernel["launch_ns"] is None:
        return None
    columns = ["start_ns", "duration_ns", "depth"]
    ops = timeline.run.events("op", rank, lane.thread, columns)
    start, depth = ops["start_ns"].to_numpy(), ops["depth"].to_numpy()
    end = pc.add(ops["start_ns"], ops["duration_ns"]).fill_null(2**62).to_numpy()
    around = np.flatnonzero((start <= kernel["launch_ns"]) & (kernel["launch_ns"] < end))
    if not len(around):
        return None
    innermost = around[np.argmax(depth[around])]
    return slice_of(timeline, lane, "op", int(innermost))


def _launched(
    timeline: Timeline, lane: Lane, op: dict[str, Any]
) -> Iterator[tuple[int, Lane, int]]:
    """(instant of the call, lane of the stream, position in its table)."""
    run = timeline.run
    until = run.duration_ns if op["duration_ns"] is None else op["start_ns"] + op["duration_ns"]
    for thread in run.threads:
        if (thread.rank, thread.kind) != (lane.rank, _STREAM):
            continue
        stream = thread_lane(timeline, lane.rank, thread.thread)
        if stream is None:
            continue
        rows = run.events("op", lane.rank, thread.thread, ["launch_ns", "launch_thread"])
        instants = rows["launch_ns"].fill_null(-1).to_numpy()
        mine = pc.equal(rows["launch_thread"].cast(pa.string()), lane.thread).to_numpy()
        for position in np.flatnonzero(mine & (instants >= op["start_ns"]) & (instants < until)):
            yield int(instants[position]), stream, int(position)
