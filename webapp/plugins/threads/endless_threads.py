"""Finds processes that do not end, because a thread of the program does not.

At its end Python waits for all threads that are not daemons, and calls the functions of atexit only
afterwards: a thread that one of these should stop goes on, and so does the process. A function of
atexit that joins a daemon thread waits in the same way.
"""

from __future__ import annotations

from typing import Any

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place, thread_lane, timeline_address
from lanescope.webapp.analysis.process_exits import asked_to_stop, endings
from lanescope.webapp.analysis.rank_state import dumps
from lanescope.webapp.analysis.stack_frames import frames_of, own_frames, own_place, short_place
from lanescope.webapp.runs.run import Run

_ENDS = ("threading.py", "_shutdown")
"""In which the main thread waits once the program has ended."""

_MODULE = "<module>"
"""The outermost function of a program; not of what atexit calls."""

_JOINED = "the end of a thread"


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
