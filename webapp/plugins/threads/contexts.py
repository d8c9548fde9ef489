"""Finds threads that miss a context variable that was set where they were started.

The recorder saw the read: by the program's own code, in a thread or a task that did not set the
variable itself, with another outcome than it would have had for the starter. Threads
that never run an operator are left out: whether it matters to them cannot be known.
"""

from __future__ import annotations

from typing import Any

from lanescope.collector.format.marks import LostContext
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import and_more, thread_lane, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_threads
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def lost_contexts(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_context`: one per rank, variable and line that read it.
    Raises NotApplicable."""
    rows = marks(run, LostContext.PREFIX)
    if not rows:
        need_threads(run)
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    computes: dict[tuple[int, str], bool] = {}
    for row in rows:
        mark = LostContext.parse(row["name"])
        if mark is None:
            continue
        thread = row["rank"], row["thread"]
        if thread not in computes:
            pieces = run.pieces("op", *thread, columns=["start_ns"])
            computes[thread] = any(piece.num_rows for piece in pieces)
        if computes[thread]:
            read = {**row, "saw": mark.found, "what": mark.started_as, "started": mark.started_at}
            found.setdefault((row["rank"], mark.variable, mark.read_at), []).append(read)
    return [_finding(run, *key, reads) for key, reads in found.items()]


_ADVICE = (
    "Pass the context on: Thread(target=contextvars.copy_context().run, args=(work,)), "
    "executor.submit(contextvars.copy_context().run, work), or asyncio.to_thread(work)."
)


def _finding(run: Run, rank: int, variable: str, path: str, reads: list[dict[str, Any]]) -> Finding:
    first = reads[0]
    where, started = map(short_place, (path, first["started"]))
    title = (
        f"Context variable {variable} is lost: it is set where the {first['what']} is "
        f"started ({started}), but {who(run, rank, reads)} found {first['saw']} "
        f"at {where}{times_text(reads)}. {_ADVICE}"
    )
    facts = {"variable": variable, "found": first["saw"], "advice": _ADVICE}
    return lost(run, rank, reads, title, where, int(first["start_ns"]), facts)


def who(run: Run, rank: int, several: list[dict[str, Any]]) -> str:
    """Returns the name of the first thread that misses something, and how many more do."""
    threads = {one["thread"] for one in several}
    first = several[0]["thread"]
    name = next(t.name for t in run.threads if (t.rank, t.thread) == (rank, first))
    return f"{name}{and_more(len(threads), 'thread')}"


def times_text(several: list[dict[str, Any]]) -> str:
    """Returns how often something was missed, as the end of a clause."""
    return f", {units.count(len(several))} times" if len(several) > 1 else ""


def lost(
    run: Run,
    rank: int,
    several: list[dict[str, Any]],
    title: str,
    where: str,
    start: int,
    facts: dict[str, str],
) -> Finding:
    """Returns the finding that threads miss something of those that started them.

    `several`: the marks of it, in time order, with `what` was started and where it was `started`.
    """
    first = several[0]
    return Finding(
        kind="lost_context",
        severity="warning",
        confidence="likely",
        title=title,
        rank=rank,
        thread=first["thread"],
        step=first["step"],
        time_ns=start,
        where=where,
        evidence={
            **facts,
            "started_as": first["what"],
            "started_at": short_place(first["started"]),
            "threads": list(dict.fromkeys(one["thread"] for one in several)),
            "times": len(several),
        },
        link=timeline_address(
            start, start, run.duration_ns, (thread_lane(rank, first["thread"]), start)
        ),
    )
