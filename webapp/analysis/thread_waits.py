"""When each thread waited for another one: in locks, queues, events, futures and joins."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import frame_ends_ns, having, to_frame
from lanescope.webapp.analysis.rank_state import rank_states
from lanescope.webapp.runs.run import Run

WAITS_FOR: Mapping[str, str] = {
    schema.SyncKind.thread_join.name: "the end of a thread",
    schema.SyncKind.lock_acquire.name: "a lock",
    schema.SyncKind.condition_wait.name: "a condition",
    schema.SyncKind.event_wait.name: "an event",
    schema.SyncKind.semaphore_acquire.name: "a semaphore",
    schema.SyncKind.barrier_leave.name: "the others of a barrier",
    schema.SyncKind.queue_get.name: "an item of a queue",
    schema.SyncKind.queue_room.name: "room in a queue",
    schema.SyncKind.queue_join.name: "the tasks of a queue",
    schema.SyncKind.future_get.name: "the result of a future",
}
"""Synchronisation events whose duration is a wait -> what the thread waits for."""


def thread_waits(
    run: Run,
    rank: int | None = None,
    thread: str | None = None,
    window: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """Returns the waits of all threads, of a rank's or of one, that touch a window.

    rank, thread, kind (of WAITS_FOR), start_ns, end_ns (int64, ns from the start of the run), open:
    it never ended, and lasts until the rank was last known to be there. By rank, thread and start.
    """
    columns = ["rank", "thread", "kind", "start_ns", "duration_ns"]
    rows = run.events("sync", rank, thread, columns, window)
    frame = to_frame(rows.filter(pa.array(having(rows["kind"], WAITS_FOR.__contains__))))
    unended = frame["duration_ns"].isna()
    ends = frame_ends_ns(frame, run.duration_ns)
    if unended.any():
        states = rank_states(run)
        ends = ends.mask(unended, frame["rank"].map(lambda one: states[one].end_ns))
    frame = frame.assign(end_ns=ends.astype("int64"), open=unended).drop(columns="duration_ns")
    return frame[frame["end_ns"] > frame["start_ns"]].reset_index(drop=True)
