"""Where one thread sets another going, waits for it, or hands something over to it, as far as a
stretch of a thread's lane shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from lanescope.collector.format.schema import SyncKind
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.lanes import Lane

MOST = 20
"""Hand-overs told of one slice: more arrows than this explain nothing."""

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
class Handover:
    """From an instant of one thread to an instant of another of the same rank, ns."""

    kind: str  # "start", "join", or by what: "lock", "condition", "event", "queue", ...
    source: str  # thread
    sent_ns: int
    target: str
    came_ns: int


def handovers(run: Run, lane: Lane, start_ns: int, end_ns: int) -> list[Handover]:
    """What ties [start_ns, end_ns] of a thread's lane to other threads, at most MOST, in order.

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
    return sorted(set(here), key=lambda one: (one.sent_ns, one.came_ns))[:MOST]


def _lives(frame: pd.DataFrame, thread: str) -> Iterator[Handover]:
    """Starts and joins that the thread takes part in."""
    own = frame[(frame["thread"] == thread) | (frame["peer"] == thread)]
    begun, ended = _first(frame, SyncKind.thread_begin), _first(frame, SyncKind.thread_end)
    for row in own[own["kind"] == SyncKind.thread_start.name].itertuples():
        if row.peer in begun:
            yield Handover("start", row.thread, int(row.start_ns), row.peer, begun[row.peer])
    for row in own[own["kind"] == SyncKind.thread_join.name].itertuples():
        if row.peer in ended and not pd.isna(row.duration_ns):
            yield Handover("join", row.peer, ended[row.peer], row.thread, int(row.end_ns))


def _first(frame: pd.DataFrame, kind: SyncKind) -> dict[str, int]:
    """Thread -> instant of its first event of a kind, ns."""
    rows = frame[frame["kind"] == kind.name].drop_duplicates("thread")
    return dict(zip(rows["thread"], map(int, rows["start_ns"]), strict=True))


def _objects(frame: pd.DataFrame, near: pd.DataFrame, thread: str) -> Iterator[Handover]:
    """What went through locks, queues and the like that the thread used nearby."""
    used = near.loc[near["thread"] == thread, "object"].dropna().unique()[: 10 * MOST]
    mine = frame[frame["object"].isin(used)]
    for (_, kind), takes in mine.groupby(["object", "kind"]):
        taken = SyncKind[str(kind)]
        if taken not in HANDED:
            continue
        gives = mine[(mine["object"] == takes["object"].iloc[0])]
        gives = gives[gives["kind"] == HANDED[taken].name].sort_values("start_ns")
        waited = takes[takes["duration_ns"].notna()]
        waited = waited[waited["duration_ns"] > 0] if taken in FREE else waited
        last: npt.NDArray[np.int64] = gives["start_ns"].to_numpy(np.int64)
        for row in waited.itertuples():
            at = int(np.searchsorted(last, row.end_ns, side="right")) - 1
            if at < 0 or gives["thread"].iloc[at] == row.thread:
                continue
            source = str(gives["thread"].iloc[at])
            by = taken.name.partition("_")[0]
            yield Handover(by, source, int(last[at]), str(row.thread), int(row.end_ns))


def _touches(one: Handover, thread: str, start_ns: int, end_ns: int) -> bool:
    ends = [(one.source, one.sent_ns), (one.target, one.came_ns)]
    return any(who == thread and start_ns <= t <= end_ns for who, t in ends)
