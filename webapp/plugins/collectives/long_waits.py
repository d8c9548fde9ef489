"""Finds waits for one rank that were longer than a watchdog's timeout and then ended.

That is slowness, not a hang: a checkpoint that one rank writes, an evaluation, a batch that took
long. It is reported as information, with what the rank was doing, where one wait is so long that a
watchdog's timeout passed in it, and most of it was for the rank that came last.
"""

from __future__ import annotations

from typing import Any

from lanescope.webapp.analysis.collective_calls import call_title
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.rank_state import NO_PROGRESS, dumps, meanwhile
from lanescope.webapp.plugins.collectives.abandoned_calls import calls_left
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_SHARE = 0.5
"""Share of a watchdog's silence that the last-comer must account for."""


def long_waits(run: Run) -> list[Finding]:
    """Returns a finding of kind `straggler` per rank and place, of its longest wait."""
    seen = _seen_waiting(run)
    if not seen:
        return []
    came = arrivals(run).set_index(COLLECTIVE_KEYS)
    left = {(one.group, one.sequence) for one in calls_left(run)}
    longest: dict[tuple[int, str], tuple[int, Finding]] = {}
    for (group, sequence), (silence, waiting) in seen.items():
        if (group, sequence) not in came.index or (group, sequence) in left:
            continue
        call = came.loc[(group, sequence)]
        rank, waited = int(call["last_rank"]), int(call["skew_ns"])
        if waited < _MIN_SHARE * silence or rank in waiting:
            continue
        doing, where = meanwhile(run, rank, int(call["first_ns"]), int(call["last_ns"]))
        one = _finding(run, (group, sequence), call, sorted(waiting), doing, where)
        key = (rank, where or doing)
        longest[key] = max(longest.get(key, (0, one)), (waited, one), key=lambda pair: pair[0])
    return [finding for _, finding in longest.values()]


def _seen_waiting(run: Run) -> dict[tuple[str, int], tuple[int, set[int]]]:
    """Calls in which a watchdog saw ranks wait: its longest silence, and the ranks."""
    found: dict[tuple[str, int], tuple[int, set[int]]] = {}
    for rank in run.ranks:
        for row in dumps(run, rank):
            name, _, rest = str(row["collective"] or "").partition("\t")
            group, _, sequence = rest.partition("\t")
            if not name or row["reason"] not in NO_PROGRESS or not sequence.isdecimal():
                continue
            silence, ranks = found.get((group, int(sequence)), (0, set()))
            longer = max(silence, int(row["duration_ns"]))
            found[group, int(sequence)] = (longer, ranks | {rank})
    return found


def _finding(
    run: Run, key: tuple[str, int], call: Any, waiting: list[int], doing: str, where: str | None
) -> Finding:
    (group, sequence), rank = key, int(call["last_rank"])
    waited, first, last = (int(call[name]) for name in ("skew_ns", "first_ns", "last_ns"))
    name = call_title(run, str(call["name"]), group, sequence)
    return Finding(
        kind="straggler",
        severity="info",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, (rank,)))} kept "
        f"{ranks_in(run, waiting)} waiting for {units.duration(waited)} in {name}: {doing}"
        + at_place(where)
        + ". Share that work among all ranks, or move it out of the training loop.",
        rank=rank,
        step=int(call["step"]),
        time_ns=first,
        where=where,
        evidence={
            "group": group,
            "sequence": sequence,
            "op": str(call["name"]),
            "waiting": waiting,
            "missing": [{"rank": rank, "doing": doing, "where": where}],
            "waited_ns": waited,
        },
        link=timeline_address(first, last, run.duration_ns, (group_lane(rank, group), last)),
    )
