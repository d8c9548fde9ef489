"""Finds processes that cannot end, because their multiprocessing.Queue is not read.

A process writes the items of such a queue from a thread, into a pipe, and waits for it as it ends.
Their recording has ended by then, or ends with the Ctrl-C that comes to all processes: known from
the process that waits for their end, which has seen nothing happen since then.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.marks import InterruptedJoin
from lanescope.webapp.analysis.arrow_columns import marks, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.process_exits import alive_ns
from lanescope.webapp.analysis.stack_frames import frames_of, short_place
from lanescope.webapp.runs.run import Run, Thread

A_READER = "a reader of its multiprocessing.Queue"
"""What such a process waits for."""

_FEEDER = "QueueFeederThread"
_END = "the end of another process"

_NOT_READ_NS = 1_000_000_000
"""For so long at least they have ended when the rest is over."""


def feeding(run: Run, rank: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row, as of a dump, for each process whose end the threads of a dump wait for and
    that has ended its program but for its queue's thread."""
    if not any(row["waiting"] == _END for row in rows):
        return []
    seen = rows[0]["time_ns"]
    ended = {one["pid"] for one in run.manifest["processes"] if one["ended"] == "exit"}
    threads = [t for t in run.threads_of(rank) if t.pid != rows[0]["pid"]]
    if any(t.pid not in ended for t in threads):
        return []  # its end may be the one that is waited for
    last = {t.pid: 0 for t in threads}
    for thread in threads:
        last[thread.pid] = max(last[thread.pid], thread.end_ns)
    return [
        {**rows[0], "thread": t.thread, "name": t.name, "pid": t.pid, "stack": None, "owner": None}
        | {"waiting": A_READER}
        for t in threads
        if t.name == _FEEDER and seen - last[t.pid] > _NOT_READ_NS
    ]


READ_FIRST = (
    "Get all items before join(): a process ends once what it put into a multiprocessing.Queue is "
    "read."
)


def interrupted_joins(run: Run, rank: int) -> list[Finding]:
    """Returns a finding of kind `deadlock` where a process that ran no operator waited for such a
    process until Ctrl-C came."""
    started = {one["parent_pid"] for one in run.manifest["processes"]}
    known = {one["pid"]: one for one in run.manifest["processes"] if one["ended"] == "exit"}
    for row in marks(run, InterruptedJoin.PREFIX, rank):
        mark = InterruptedJoin.parse(row["name"])
        process = known.get(mark.pid) if mark is not None else None
        if mark is None or process is None or mark.pid in started:
            continue
        threads = [t for t in run.threads_of(rank) if t.pid == mark.pid]
        names = sorted(t.name for t in threads)
        active = [t.end_ns if t.name == _FEEDER else _active_ns(run, t) for t in threads]
        since = min(alive_ns(run, process), max(active, default=0))
        if names != [_FEEDER, "main"] or row["start_ns"] - since < _NOT_READ_NS:
            continue
        where = short_place(mark.place)
        return [
            Finding(
                kind="deadlock",
                severity="error",
                title=f"Deadlock: main waits for the end of process {mark.pid} at {where}, which "
                f"waits for {A_READER}; Ctrl-C ended it. {READ_FIRST}",
                rank=rank,
                thread=row["thread"],
                step=None,
                time_ns=since,
                where=where,
                evidence={"process": mark.pid, "idle_ns": row["start_ns"] - since},
                link=timeline_address(since, row["start_ns"], run.duration_ns),
            )
        ]
    return []


def _active_ns(run: Run, thread: Thread) -> int:
    """When a thread last did anything but end, which Ctrl-C may have made it do."""
    ops, syncs = (to_frame(run.events(one, thread.rank, thread.thread)) for one in ("op", "sync"))
    rows = pd.concat([ops, syncs[syncs["kind"] != schema.SyncKind.thread_end.name]])
    return int((rows["start_ns"] + rows["duration_ns"].fillna(0)).max()) if len(rows) else 0


def in_pool(run: Run, rows: list[dict[str, Any]]) -> bool:
    """Returns whether a thread of a dump is one by which a multiprocessing.Pool gets results."""
    frames = (frame for row in rows for frame in frames_of(run, row["rank"], row["stack"]))
    return any(
        frame["function"] == "_handle_results" and frame["file"].endswith("multiprocessing/pool.py")
        for frame in frames
    )
