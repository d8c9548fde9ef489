"""Finds event loops of asyncio that cannot wake tasks in time, as a coroutine works meanwhile.

The recorder notes by how much a loop is late for a timer that a task of the program awaits. What
its thread did then are the operators of that time, and waits for other threads.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import BLOCKED_LOOP
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TIMES = 3


def blocked_loops(run: Run) -> list[Finding]:
    """Returns findings of kind `blocked_loop`, one per thread with a loop."""
    found = []
    rows = logged(run, None, prefix=BLOCKED_LOOP)
    for (rank, thread), own in rows.groupby(["rank", "thread"], sort=True, observed=True):
        if len(own) >= _MIN_TIMES:
            found.append(_finding(run, int(rank), str(thread), own.sort_values("time_ns")))
    return found


def _finding(run: Run, rank: int, thread: str, rows: pd.DataFrame) -> Finding:
    worst = rows.loc[rows["value"].idxmax()]
    lasted, end = round(worst["value"] * 1e9), int(worst["time_ns"])
    where, waits_there = _works_at(run, rank, thread, rows)
    what, that = ("a wait for another thread", "call") if waits_there else ("work", "work")
    at = at_place(where)
    waits = f" at {worst['name']}" if worst["name"] else ""
    return Finding(
        kind="blocked_loop",
        severity="warning",
        confidence="likely",
        title=f"The event loop is blocked {units.count(len(rows))} times, for up to "
        f"{units.duration(lasted)}: {what}{at} runs in its thread without an await, and "
        f"tasks whose timer ends wait meanwhile{waits}. Await "
        f"asyncio.to_thread(...) with that {that}, or loop.run_in_executor().",
        rank=rank,
        thread=thread,
        step=int(worst["step"]),
        time_ns=end - lasted,
        where=where or str(worst["name"]) or None,
        evidence={"times": len(rows), "seconds": float(rows["value"].sum())},
        link=timeline_address(end - lasted, end, run.duration_ns),
    )


def _works_at(run: Run, rank: int, thread: str, rows: pd.DataFrame) -> tuple[str | None, bool]:
    """The line of the operators, or of the wait for another thread, that take most of the time in
    which the loop is blocked, and whether it is a wait."""
    columns = ["start_ns", "duration_ns", "stack"]
    parts = []
    for end, value in zip(rows["time_ns"], rows["value"], strict=True):
        window = end - round(value * 1e9), end
        ops = to_frame(run.events("op", rank, thread, [*columns, "depth"], window=window))
        waits = to_frame(run.events("sync", rank, thread, columns, window=window))
        parts += [ops[ops["depth"] == 0].assign(waits=False), waits.assign(waits=True)]
    spans = pd.concat(parts)
    spans = spans[spans["stack"].fillna(-1) >= 0].fillna({"duration_ns": 0})
    times = spans.groupby(["stack", "waits"])["duration_ns"].sum()
    if times.empty:
        return None, False
    stack, waits_there = times.idxmax()
    return own_place(run, rank, int(stack)), bool(waits_there)
