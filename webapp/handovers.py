"""Where one thread sets another going or waits for it, as far as a stretch of a lane shows it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector import schema
from lanescope.webapp.lanes import Lane
from lanescope.webapp.run import Run

_START, _BEGIN, _END, _JOIN = (
    kind.name
    for kind in (
        schema.SyncKind.thread_start,
        schema.SyncKind.thread_begin,
        schema.SyncKind.thread_end,
        schema.SyncKind.thread_join,
    )
)

MOST = 20
"""Hand-overs told of one slice: more arrows than this explain nothing."""


@dataclass(frozen=True)
class Handover:
    """From an instant of one thread to an instant of another of the same rank, ns."""

    kind: str  # "start" or "join"
    source: str  # thread
    sent_ns: int
    target: str
    came_ns: int


def handovers(run: Run, lane: Lane, start_ns: int, end_ns: int) -> list[Handover]:
    """The thread starts and joins that touch [start_ns, end_ns] of a thread's lane, at most MOST.

    A start leads from the parent's call to the child's first instant, a join from the child's last
    instant to the waiter's return. One whose other half was not recorded is left out.
    """
    if lane.thread is None:
        return []
    columns = ["start_ns", "duration_ns", "kind", "peer", "thread"]
    table = run.events("sync", lane.rank, columns=columns)
    own = pc.equal(table["thread"].cast(pa.string()), lane.thread)
    table = table.filter(pc.or_(own, pc.equal(table["peer"], lane.thread).fill_null(False)))
    rows = table.to_pylist()
    found = []
    for row in rows:
        if row["kind"] == _START and row["peer"]:
            begin = _instant(run, lane.rank, row["peer"], _BEGIN)
            if begin is not None:
                found.append(Handover("start", row["thread"], row["start_ns"], row["peer"], begin))
        elif row["kind"] == _JOIN and row["peer"] and row["duration_ns"] is not None:
            ended = _instant(run, lane.rank, row["peer"], _END)
            back = row["start_ns"] + row["duration_ns"]
            if ended is not None:
                found.append(Handover("join", row["peer"], ended, row["thread"], back))
    here = [one for one in found if _touches(one, lane.thread, start_ns, end_ns)]
    return sorted(here, key=lambda one: one.sent_ns)[:MOST]


def _touches(one: Handover, thread: str, start_ns: int, end_ns: int) -> bool:
    ends = [(one.source, one.sent_ns), (one.target, one.came_ns)]
    return any(who == thread and start_ns <= t <= end_ns for who, t in ends)


def _instant(run: Run, rank: int, thread: str, kind: str) -> int | None:
    """When a thread began or ended."""
    if not any((one.rank, one.thread) == (rank, thread) for one in run.threads):
        return None
    rows = run.events("sync", rank, thread, ["start_ns", "kind"])
    rows = rows.filter(pc.equal(rows["kind"].cast(pa.string()), kind))
    return int(rows["start_ns"][0].as_py()) if rows.num_rows else None
