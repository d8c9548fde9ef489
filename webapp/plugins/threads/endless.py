"""Finds processes that cannot end, for a queue of theirs that is not read or for a thread.

A process writes the items of a multiprocessing.Queue from a thread, into a pipe, and waits for it
as it ends. Its recording has ended by then, or ends with the Ctrl-C that comes to all processes:
known from the process that waits for its end, which has seen nothing happen since then.

At its end Python waits for all threads that are not daemons, and calls the functions of atexit only
afterwards: a thread that one of these should stop goes on, and so does the process. A function of
atexit that joins a daemon thread waits in the same way.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.marks import InterruptedJoin
from lanescope.webapp.analysis.arrow_columns import marks, phases_of_kind, to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place, thread_lane, timeline_address
from lanescope.webapp.analysis.process_exits import alive_ns, asked_to_stop, endings
from lanescope.webapp.analysis.rank_state import dumps
from lanescope.webapp.analysis.stack_frames import frames_of, own_frames, own_place, short_place
from lanescope.webapp.runs.run import Run, Thread

A_READER = "a reader of its multiprocessing.Queue"
"""What such a process waits for."""

_FEEDER = "QueueFeederThread"
_END = "the end of another process"

_ENDS = ("threading.py", "_shutdown")
"""In which the main thread waits once the program has ended."""

_MODULE = "<module>"
"""The outermost function of a program; not of what atexit calls."""

_JOINED = "the end of a thread"

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


def endless_threads(run: Run, rank: int) -> list[Finding]:
    """Returns at most one finding of kind `deadlock`: the threads for which the process of a rank
    that trained waited at its end, until somebody stopped it."""
    main = {one.thread: one for one in run.threads_of(rank) if one.kind == "main"}
    rows = [row for row in dumps(run, rank) if row["reason"] != "signal"]
    ended = [row for row in rows if row["thread"] in main and _has_ended(run, rank, row)]
    stopped = asked_to_stop(run) or endings(run)[rank].how != "exit"
    if not (ended and stopped and len(phases_of_kind(run, schema.PhaseKind.optimizer, rank))):
        return []
    last = ended[-1]
    there = [
        row
        for row in rows
        if row["time_ns"] == last["time_ns"]
        and row["thread"] not in main
        # What it joins is known; else all that runs the program's own code.
        and (last["owner"] in (None, row["thread"]))
        and own_place(run, rank, row["stack"])
    ]
    if not there:
        return []
    first = there[0]
    where = own_place(run, rank, first["stack"])
    since = last["time_ns"] - last["duration_ns"]
    names = ", ".join(dict.fromkeys(row["name"] for row in there))
    return [
        finding_at(
            run,
            rank,
            {**first, "step": int(run.steps(rank).index[-1])},
            kind="deadlock",
            severity="warning",
            confidence="likely",
            title=f"The process does not end: the program is done, and Python waits for {names}, "
            f"which runs on{at_place(where)}. Stop that thread and join it before the program "
            "ends, in a finally: functions of atexit are called only once all threads have ended. "
            "Or start it with daemon=True, and join it nowhere.",
            where=where,
            evidence={"threads": [row["thread"] for row in there], "idle_ns": last["duration_ns"]},
            link=timeline_address(
                max(0, since - 1_000_000_000),
                since,
                run.duration_ns,
                at=(thread_lane(rank, first["thread"]), since),
            ),
        )
    ]


def _has_ended(run: Run, rank: int, row: dict[str, Any]) -> bool:
    """Whether the main thread was seen to wait for threads after the program had ended."""
    frames = frames_of(run, rank, row["stack"])
    ends = any((short_place(one["file"]), one["function"]) == _ENDS for one in frames)
    own = own_frames(run, rank, row["stack"])
    return ends or (row["waiting"] == _JOINED and all(one["function"] != _MODULE for one in own))
