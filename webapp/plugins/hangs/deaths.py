"""Finds ranks that died or raised, and so ended a job whose other ranks did not wait for them.

A launcher ends the others within a tenth of a second. What they do then need not be a call that the
dead rank is missing in; it ended by itself and they were stopped, so it ended first.
"""

from __future__ import annotations

from collections.abc import Collection

from lanescope.webapp.analysis.collective_calls import calls
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import group_lane, timeline_address
from lanescope.webapp.analysis.process_exits import (
    alive_ns,
    asked_to_stop,
    attempts,
    endings,
    exception_of,
    gave_up,
)
from lanescope.webapp.analysis.rank_state import RankState, rank_states
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_OWN_FAULT = ("died", "raised")
_BY_OTHERS = ("stopped", "gave up")


def deaths(run: Run, reported: Collection[int]) -> list[Finding]:
    """Returns a finding for each rank not in `reported` that ended by its own fault.

    None where someone stopped the job: what a rank raises then has a reason outside of it.
    """
    ended = endings(run)
    earlier = _before(run)
    others = [rank for rank, one in ended.items() if one.how in _BY_OTHERS]
    if not others or asked_to_stop(run):
        return earlier
    return earlier + [
        _death(run, rank_states(run)[rank], others)
        for rank, one in ended.items()
        if one.how in _OWN_FAULT and rank not in reported
    ]


def _before(run: Run) -> list[Finding]:
    """A finding for each exception that ended an attempt before the last one."""
    found = []
    for rank, processes in attempts(run).items():
        for number, process in enumerate(processes[:-1], 1):
            if process["ended"] != "exception" or gave_up(process):
                continue
            said, where = exception_of(process)
            time = alive_ns(run, process)
            found.append(
                Finding(
                    kind="hang",
                    severity="warning",
                    title=f"{units.sentence(ranks_in(run, (rank,)))} {said}, which "
                    f"ended attempt {number} of {len(processes)}. "
                    "The job was started again: all other findings are about the last attempt.",
                    rank=rank,
                    where=where,
                    time_ns=time,
                    evidence={
                        "group": "0",
                        "sequence": -1,
                        "op": {},
                        "called_at": {},
                        "waiting": [],
                        "missing": [{"rank": rank, "doing": said, "where": where}],
                        "attempt": number,
                        "attempts": len(processes),
                    },
                    link=timeline_address(max(0, time - 1_000_000), time, run.duration_ns),
                )
            )
    return found


def _death(run: Run, one: RankState, others: list[int]) -> Finding:
    frame = calls(run)
    last = frame[frame["rank"] == one.rank].sort_values("start_ns").tail(1)
    group, sequence, since = "0", -1, one.since_ns
    for row in last.itertuples():
        group, sequence, since = str(row.group), int(row.sequence), int(row.start_ns)
    doing = f"{one.activity} at {one.where}" if one.where else one.activity
    at = (group_lane(one.rank, group), since) if len(last) else None
    return Finding(
        kind="hang",
        severity="error",
        title=f"{units.sentence(ranks_in(run, (one.rank,)))} {doing}. It ended "
        f"{ranks_in(run, others)} too: fix it first.",
        rank=one.rank,
        thread=one.thread,
        where=one.where,
        time_ns=one.since_ns,
        evidence={
            "group": group,
            "sequence": sequence + 1,
            "op": {},
            "called_at": {},
            "waiting": [],
            "missing": [{"rank": one.rank, "doing": one.activity, "where": one.where}],
            "ended_by_it": others,
        },
        link=timeline_address(since, max(one.since_ns, since + 1), run.duration_ns, at),
    )
