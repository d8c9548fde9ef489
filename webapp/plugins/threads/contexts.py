"""Finds threads that miss a context variable that was set where they were started.

The recorder saw the read: by the program's own code, in a thread or a task that did not set the
variable itself, with another outcome than it would have had for the starter. Threads
that never run an operator are left out: whether it matters to them cannot be known.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.marks import LostContext
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import and_more, thread_lane, timeline_address
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_COLUMNS = ["rank", "thread", "step", "kind", "name", "start_ns"]


def lost_contexts(run: Run) -> list[Finding]:
    """Findings of kind `lost_context`: one per rank, variable and line that read it."""
    rows = run.events("phase", columns=_COLUMNS)
    rows = rows.filter(pc.starts_with(rows["name"].cast(pa.string()), LostContext.PREFIX))
    found: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    computes: dict[tuple[int, str], bool] = {}
    for row in rows.sort_by("start_ns").to_pylist():
        mark = LostContext.parse(row["name"])
        if mark is None or row["kind"] != schema.PhaseKind.mark.name:
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
    where, started = (place.rpartition("/")[2] for place in (path, first["started"]))
    threads = list(dict.fromkeys(read["thread"] for read in reads))
    name = next(t.name for t in run.threads if (t.rank, t.thread) == (rank, first["thread"]))
    times = f", {units.count(len(reads))} times" if len(reads) > 1 else ""
    start = int(first["start_ns"])
    return Finding(
        kind="lost_context",
        severity="warning",
        confidence="likely",
        title=f"Context variable {variable} is lost: it is set where the {first['what']} is "
        f"started ({started}), but {name}{and_more(len(threads), 'thread')} found {first['saw']} "
        f"at {where}{times}. {_ADVICE}",
        rank=rank,
        ranks=(rank,),
        thread=first["thread"],
        step=first["step"],
        time_ns=start,
        where=where,
        evidence={
            "variable": variable,
            "found": first["saw"],
            "started_as": first["what"],
            "started_at": started,
            "threads": threads,
            "times": len(reads),
            "advice": _ADVICE,
        },
        link=timeline_address(
            start, start, run.duration_ns, (thread_lane(rank, first["thread"]), start)
        ),
    )
