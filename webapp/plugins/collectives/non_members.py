"""Finds ranks that call a collective of a group that they are not in: the call does nothing."""

from __future__ import annotations

from typing import Any

from lanescope.collector.format.marks import OutsideGroup
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run


def outside_groups(run: Run) -> list[Finding]:
    """Findings of kind `collective_mismatch`, one per function and line. Raises NotApplicable."""
    need_ranks(run)
    calls: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in marks(run, OutsideGroup.PREFIX):
        mark = OutsideGroup.parse(row["name"])
        if mark is not None:
            calls.setdefault((mark.function, short_place(mark.place)), []).append(row)
    return [_finding(run, *place, several) for place, several in calls.items()]


def _finding(run: Run, function: str, where: str, calls: list[dict[str, Any]]) -> Finding:
    first = calls[0]
    ranks = tuple(sorted({int(row["rank"]) for row in calls}))
    call, they = ("calls", "it is") if len(ranks) == 1 else ("call", "they are")
    times = f", {units.count(len(calls))} times" if len(calls) > 1 else ""
    return finding_at(
        run,
        first["rank"],
        first,
        kind="collective_mismatch",
        title=f"{units.sentence(ranks_in(run, ranks))} {call} {function}"
        + at_place(where)
        + f" with a group that {they} not in{times}: the call does nothing there, "
        "and the tensor stays as it is. Make the group of all ranks that need the result "
        "(new_group), or skip the call on the others.",
        ranks=ranks,
        where=where,
        evidence={
            "group": "",
            "sequence": -1,
            "op": {},
            "waiting": [],
            "missing": [],
        },
        link=timeline_address(first["start_ns"], first["start_ns"] + 1, run.duration_ns),
    )
