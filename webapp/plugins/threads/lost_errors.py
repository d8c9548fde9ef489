"""Finds errors that are lost: of threads, and of tasks of pools whose result is not asked for."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from lanescope.collector.format.marks import LostError
from lanescope.webapp.analysis import process_exits
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.plugins.threads.contexts import times_text
from lanescope.webapp.runs.run import Run


def lost_errors(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_error`, one per rank and exception.

    Of ranks that ended by themselves: another one may not have come to ask for the result.
    """
    found = []
    for rank, ending in process_exits.endings(run).items():
        if ending.how == "exit":
            marks = defaultdict(list)
            for row, mark in process_exits.error_marks(run, rank):
                marks[mark].append(row)
            found += [_finding(run, rank, mark, several) for mark, several in marks.items()]
    return found


def _finding(run: Run, rank: int, mark: LostError, several: list[dict[str, Any]]) -> Finding:
    (said, where), first = process_exits.raised_at(mark.error), several[0]
    at = f" at {where}" if where else ""
    raised = f"{said}{at}{times_text(several)}"
    title = {
        "task": f"A task of a pool {raised}, and its error is lost: the program does not ask for "
        "the result. Keep what submit() or map() returns, and call result() on each future or go "
        "through the results.",
        "coroutine": f"A task of asyncio {raised}, and its error is lost: nothing awaits the task. "
        "Await it, gather it with the others, or use asyncio.TaskGroup.",
        "thread": f"A thread {raised}, and the program goes on without it. Catch the error in the "
        "thread and hand it to the main thread, or use a pool and result().",
    }[mark.of]
    return Finding(
        kind="lost_error",
        severity="warning",
        title=title,
        rank=rank,
        ranks=(rank,),
        thread=first["thread"],
        step=first["step"],
        time_ns=first["start_ns"],
        where=where,
        evidence={"of": mark.of, "times": len(several)},
        link=timeline_address(first["start_ns"], first["start_ns"], run.duration_ns),
    )
