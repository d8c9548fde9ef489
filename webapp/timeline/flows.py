"""Arrows from a slice to what it belongs to, as `assets/timeline/model/flows.js` draws them.

A flow is {kind, from, to, tone}; an end names a slice by lane, row and ref, and an instant `t` in
ns. The tone chooses the colour: "ties", "threads" or "races".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.schema import SyncKind
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline.lanes import Lane
from lanescope.webapp.timeline.span_links import Place, lane_of_thread, slice_of
from lanescope.webapp.timeline.timeline import Timeline

_Json = dict[str, Any]


def end(place: _Json, t: int) -> _Json:
    """Returns one end of a flow: an instant on the slice that `place` names."""
    return {"lane": place["lane"], "row": place["row"], "ref": place["ref"], "t": t}


def flow(kind: str, tone: str, here: _Json, there: _Json, *, outgoing: bool) -> _Json:
    """Returns a flow from here to there, or the other way."""
    first, last = (here, there) if outgoing else (there, here)
    return {"kind": kind, "from": first, "to": last, "tone": tone}


def flows_of(span: _Json) -> list[_Json]:
    """Returns the flows of a slice, as `span_details` describes it.

    To its forward or backward partner, the same collective on the other ranks, threads that it
    starts or waits for, and kernels that it launches.
    """
    start, until = span["drawn"]
    flows = []
    if partner := span.get("partner"):
        later = partner["start_ns"] >= start
        there = end(partner, partner["start_ns"] if later else partner["end_ns"])
        here = end(span, until if later else start)
        flows.append(flow("autograd", "ties", here, there, outgoing=later))
    if peers := span.get("peers"):
        # One line through all ranks, in their order: where it leans is who came late.
        own = {**span, "start_ns": start}
        calls = sorted([*peers, own], key=lambda call: call["rank"])
        ends = [end(call, call["start_ns"]) for call in calls]
        flows += [flow("collective", "ties", a, b, outgoing=True) for a, b in pairwise(ends)]
    for one in span.get("threads", ()):
        sent, came = one["sent_ns"], one["came_ns"]
        mine, theirs = (sent, came) if one["outgoing"] else (came, sent)
        ends = [end(span, mine), end(one, theirs)]
        flows.append(flow(one["kind"], "threads", *ends, outgoing=one["outgoing"]))
    for one in span.get("launches", ()):
        mine, theirs = (one["launch_ns"], one["start_ns"])
        if not one["outgoing"]:
            mine, theirs = start, one["launch_ns"]
        ends = [end(span, mine), end(one, theirs)]
        flows.append(flow("launch", "ties", *ends, outgoing=one["outgoing"]))
    return flows


MAX_FLOWS = 20
"""Hand-overs shown of one slice: more arrows than this explain nothing."""

HANDED = {
    SyncKind.lock_acquire: SyncKind.lock_release,
    SyncKind.condition_wait: SyncKind.condition_notify,
    SyncKind.event_wait: SyncKind.event_set,
    SyncKind.semaphore_acquire: SyncKind.semaphore_release,
    SyncKind.queue_get: SyncKind.queue_put,
    SyncKind.queue_room: SyncKind.queue_taken,
    SyncKind.queue_join: SyncKind.task_done,
    SyncKind.future_get: SyncKind.future_set,
    SyncKind.callback_run: SyncKind.callback_post,
}
"""What comes, and what sends it, through one object."""

FREE = {SyncKind.lock_acquire, SyncKind.semaphore_acquire}
"""Of these, one that did not have to wait took nothing from anybody."""


@dataclass(frozen=True)
class SyncFlow:
    """From an instant of one thread to an instant of another of the same rank, ns."""

    kind: str  # "start", "join", or by what: "lock", "condition", "event", "queue", ...
    source: str  # thread
    sent_ns: int
    target: str
    came_ns: int


def sync_flows(run: Run, lane: Lane, start_ns: int, end_ns: int) -> list[SyncFlow]:
    """Flows between [start_ns, end_ns] of a thread's lane and other threads, MAX_FLOWS at most.

    A start leads from the parent's call to the child's first instant, a join from the child's last
    instant to the waiter's return; a lock, queue or the like from the last one of another thread
    that let go of it, to the end of the wait. What has no other half in the run is left out.
    """
    if lane.thread is None:
        return []
    columns = ["start_ns", "duration_ns", "kind", "peer", "object", "thread"]
    table = run.events("sync", lane.rank, columns=columns)
    if not table.num_rows:
        return []
    table = table.set_column(2, "kind", table["kind"].cast(pa.string()))
    frame = table.set_column(5, "thread", table["thread"].cast(pa.string())).to_pandas()
    frame["end_ns"] = frame["start_ns"] + frame["duration_ns"].fillna(0).astype(np.int64)
    near = (frame["end_ns"] >= start_ns) & (frame["start_ns"] <= end_ns)
    found = [*_lives(frame, lane.thread), *_objects(frame, frame[near], lane.thread)]
    here = [one for one in found if _touches(one, lane.thread, start_ns, end_ns)]
    return sorted(set(here), key=lambda one: (one.sent_ns, one.came_ns))[:MAX_FLOWS]


def _lives(frame: pd.DataFrame, thread: str) -> Iterator[SyncFlow]:
    """Starts and joins that the thread takes part in."""
    own = frame[(frame["thread"] == thread) | (frame["peer"] == thread)]
    begun, ended = _first(frame, SyncKind.thread_begin), _first(frame, SyncKind.thread_end)
    for row in own[own["kind"] == SyncKind.thread_start.name].itertuples():
        if row.peer in begun:
            yield SyncFlow("start", row.thread, int(row.start_ns), row.peer, begun[row.peer])
    for row in own[own["kind"] == SyncKind.thread_join.name].itertuples():
        if row.peer in ended and not pd.isna(row.duration_ns):
            yield SyncFlow("join", row.peer, ended[row.peer], row.thread, int(row.end_ns))


def _first(frame: pd.DataFrame, kind: SyncKind) -> dict[str, int]:
    """Thread -> instant of its first event of a kind, ns."""
    rows = frame[frame["kind"] == kind.name].drop_duplicates("thread")
    return dict(zip(rows["thread"], map(int, rows["start_ns"]), strict=True))


def _objects(frame: pd.DataFrame, near: pd.DataFrame, thread: str) -> Iterator[SyncFlow]:
    """What went through locks, queues and the like that the thread used nearby."""
    used = near.loc[near["thread"] == thread, "object"].dropna().unique()
    used = used[used != schema.OTHER_PROCESSES][: 10 * MAX_FLOWS]
    mine = frame[frame["object"].isin(used)]
    for (_, kind), takes in mine.groupby(["object", "kind"]):
        taken = SyncKind[str(kind)]
        if taken not in HANDED:
            continue
        gives = mine[(mine["object"] == takes["object"].iloc[0])]
        gives = gives[gives["kind"] == HANDED[taken].name].sort_values("start_ns")
        waited = takes[takes["duration_ns"].notna()]
        waited = waited[waited["duration_ns"] > 0] if taken in FREE else waited
        last: Int64Array = gives["start_ns"].to_numpy(np.int64)
        for row in waited.itertuples():
            at = int(np.searchsorted(last, row.end_ns, side="right")) - 1
            if at < 0 or gives["thread"].iloc[at] == row.thread:
                continue
            source = str(gives["thread"].iloc[at])
            by = taken.name.partition("_")[0]
            yield SyncFlow(by, source, int(last[at]), str(row.thread), int(row.end_ns))


def _touches(one: SyncFlow, thread: str, start_ns: int, end_ns: int) -> bool:
    ends = [(one.source, one.sent_ns), (one.target, one.came_ns)]
    return any(who == thread and start_ns <= t <= end_ns for who, t in ends)


_MAX_LAUNCHES = 20
"""Launches shown of one operator: more arrows than this explain nothing."""

_KERNEL = schema.OpScope.kernel.name
_STREAM = schema.ThreadKind.stream.name


@dataclass(frozen=True)
class Launch:
    """The other end of a launch, and when the call was made that launched."""

    place: Place
    outgoing: bool  # what was launched; false: the operator that launched
    launch_ns: int


def launches(timeline: Timeline, lane: Lane, op: dict[str, Any]) -> list[Launch]:
    """Returns for a kernel or copy the innermost operator around the call that launched it; for
    another op the first MAX_LAUNCHES kernels and copies that calls within it launched, in order of
    the calls.

    Nothing where the call is not known, or no operator around it was recorded.
    """
    if op["scope"] == _KERNEL:
        place = _launcher(timeline, lane.rank, op)
        return [] if place is None else [Launch(place, False, op["launch_ns"])]
    found = sorted(_launched(timeline, lane, op), key=lambda one: one[0])[:_MAX_LAUNCHES]
    return [
        Launch(place, True, launch_ns)
        for launch_ns, stream, position in found
        if (place := slice_of(timeline, stream, "op", position)) is not None
    ]


def _launcher(timeline: Timeline, rank: int, kernel: dict[str, Any]) -> Place | None:
    lane = lane_of_thread(timeline, rank, kernel["launch_thread"])
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
        stream = lane_of_thread(timeline, lane.rank, thread.thread)
        if stream is None:
            continue
        rows = run.events("op", lane.rank, thread.thread, ["launch_ns", "launch_thread"])
        instants = rows["launch_ns"].fill_null(-1).to_numpy()
        mine = pc.equal(rows["launch_thread"].cast(pa.string()), lane.thread).to_numpy()
        for position in np.flatnonzero(mine & (instants >= op["start_ns"]) & (instants < until)):
            yield int(instants[position]), stream, int(position)
