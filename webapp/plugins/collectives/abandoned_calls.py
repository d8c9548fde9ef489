"""Finds calls that a rank gave up before another one came to them.

No rank can leave a synchronising collective before all have entered. One that was done with such a
call before a member of the group began it did not leave it, it failed there: its time was over. The
program may go on (an error in a thread, or one that it caught), and then all ranks made all calls
and no rank is missing at the end. This is proof, up to the uncertainty of the clocks, where both
times were recorded.

One that left at once did not wait: the call failed by itself (it refused its arguments, say), no
matter which rank came later.

Calls that all gave up may have waited for each other: each of two ranks was in a call to which the
other came only afterwards. That is two groups taken in opposite order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lanescope.collector.format.names import SYNCHRONISING
from lanescope.webapp.analysis.collective_calls import (
    ambiguous,
    call_title,
    collective_calls,
    group_members,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.process_exits import endings
from lanescope.webapp.analysis.rank_state import meanwhile
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_NS = 1_000_000
"""A rank must have been done at least this much earlier, and three times the clock uncertainty."""

MIN_GIVEN_UP_NS = 100_000_000
"""No timeout is this short: a rank that left a call sooner failed by itself."""

NOTHING_MOVED = ("barrier", "monitored_barrier")
"""Operations that wait for all though they have no bytes; others may be done at once then."""


@dataclass(frozen=True)
class Left:
    """A call that one rank was done with before another began it. Times from the run's start."""

    group: str
    sequence: int
    name: str
    rank: int  # gave up
    begin_ns: int
    end_ns: int
    late: int  # the rank that came last
    came_ns: int
    thread: str
    stack: int
    step: int


def given_up(run: Run) -> list[Finding]:
    """Returns at most one finding: of the first call that was given up, for others may follow from
    it."""
    left = sorted(calls_left(run), key=lambda one: one.begin_ns)
    for one in left:
        other = _waited_for_it(run, one)
        if other is not None:
            return [_crossed(run, sorted((one, other), key=lambda each: each.begin_ns))]
    long = [one for one in left if one.end_ns - one.begin_ns >= MIN_GIVEN_UP_NS]
    if long or not left:
        return [_too_late(run, one) for one in long[:1]]
    raised = endings(run)[left[0].rank].how == "raised"  # which is a finding of its own
    return [] if raised else [_failed(run, left[0])]


@lru_cache(maxsize=4)
def calls_left(run: Run) -> tuple[Left, ...]:
    """Returns every call that one rank was done with before another began it."""
    return () if run.imported or not run.clock_calibrated else tuple(_left(run))


def _left(run: Run) -> Iterator[Left]:
    frame = collective_calls(run)
    frame = frame[frame["name"].isin(SYNCHRONISING) & ~frame["group"].isin(ambiguous(run))]
    frame = frame[(frame["bytes"] > 0) | frame["name"].isin(NOTHING_MOVED)]
    margin = max(_MIN_NS, 3 * run.clock_uncertainty_ns)
    groups = frame.groupby(["group", "sequence"])
    last = groups["start_ns"].transform("max")
    early = frame[(frame["done_ns"] >= 0) & (frame["done_ns"] + margin < last)]
    for row in early.itertuples():
        same = (frame["group"] == row.group) & (frame["sequence"] == row.sequence)
        made = frame[same]
        alike = made["name"].nunique() == 1 and made["shapes"].map(str).nunique() == 1
        if not alike or made["rank"].nunique() < len(group_members(run)[str(row.group)]):
            continue  # a mismatch, or a member that never came
        late = made.loc[made["start_ns"].idxmax()]
        yield Left(
            str(row.group),
            int(row.sequence),
            str(row.name),
            int(row.rank),
            int(row.start_ns),
            int(row.done_ns),
            int(late["rank"]),
            int(late["start_ns"]),
            str(row.thread),
            int(row.stack),
            int(row.step),
        )


def _waited_for_it(run: Run, one: Left) -> Left | None:
    """A call in which the rank that came too late was itself, for as long, before this one came."""
    frame = collective_calls(run)
    frame = frame[frame["name"].isin(SYNCHRONISING)]
    theirs = frame[(frame["rank"] == one.late) & (frame["start_ns"] < one.end_ns)]
    ours = frame[(frame["rank"] == one.rank) & (frame["start_ns"] >= one.end_ns)]
    met = theirs.merge(ours[["group", "sequence", "start_ns"]], on=["group", "sequence"])
    met = met[met["done_ns"] >= one.end_ns]
    for row in met.itertuples():
        return Left(
            str(row.group),
            int(row.sequence),
            str(row.name),
            one.late,
            int(row.start_ns_x),
            int(row.done_ns),
            one.rank,
            int(row.start_ns_y),
            str(row.thread),
            int(row.stack),
            int(row.step),
        )
    return None


def _crossed(run: Run, both: Sequence[Left]) -> Finding:
    said = "; ".join(
        f"{ranks_in(run, (one.rank,))} waited in {_call(run, one)} for {ranks_in(run, (one.late,))}"
        for one in both
    )
    cycle = [_evidence(run, one) for one in both]
    return Finding(
        kind="collective_mismatch",
        severity="error",
        title=f"Ranks waited for each other until they gave up: {said}. Call these collectives in "
        "the same order on all ranks.",
        ranks=tuple(sorted({one.rank for one in both})),
        where=where_of(run, both[0].rank, both[0].stack),
        evidence={**cycle[0], "cycle": cycle},
        **_place(run, both[0]),
    )


def _too_late(run: Run, one: Left) -> Finding:
    doing, where = meanwhile(run, one.late, one.begin_ns, one.came_ns)
    return Finding(
        kind="straggler",
        severity="error",
        title=f"{units.sentence(ranks_in(run, (one.rank,)))} gave up {_call(run, one)} after "
        f"{units.duration(one.end_ns - one.begin_ns)}, "
        f"{units.duration(one.came_ns - one.end_ns)} before rank {one.late} came to it: {doing}"
        + at_place(where)
        + f". Shorten that work on rank {one.late}, or raise the timeout of the process group.",
        ranks=(one.late,),
        where=where,
        evidence=_evidence(run, one),
        **_place(run, one),
    )


def _failed(run: Run, one: Left) -> Finding:
    where = where_of(run, one.rank, one.stack)
    return Finding(
        kind="hang",
        severity="error",
        title=f"{units.sentence(ranks_in(run, (one.rank,)))} failed in {_call(run, one)} after "
        f"{units.duration(one.end_ns - one.begin_ns)}, before rank {one.late} came to it"
        + (f", at {where}" if where else "")
        + ". The call failed by itself: read the exception, and check its arguments.",
        ranks=(one.rank,),
        where=where,
        evidence={
            **_evidence(run, one),
            "waiting": [one.late],
            "missing": [{"rank": one.rank, "doing": "failed in it", "where": where}],
        },
        **_place(run, one),
    )


def _call(run: Run, one: Left) -> str:
    return call_title(run, one.name, one.group, one.sequence)


def _evidence(run: Run, one: Left) -> dict[str, Any]:
    doing, where = meanwhile(run, one.late, one.begin_ns, one.came_ns)
    return {
        "group": one.group,
        "sequence": one.sequence,
        "op": {str(one.rank): one.name, str(one.late): one.name},
        "waiting": [one.rank],
        "missing": [{"rank": one.late, "doing": doing, "where": where}],
        "waited_ns": one.end_ns - one.begin_ns,
        "came_after_ns": one.came_ns - one.end_ns,
        "called_at": {str(one.rank): where_of(run, one.rank, one.stack)},
    }


def _place(run: Run, one: Left) -> dict[str, Any]:
    at = (group_lane(one.rank, one.group), one.begin_ns)
    return {
        "rank": one.rank,
        "thread": one.thread,
        "step": one.step,
        "time_ns": one.begin_ns,
        "link": timeline_address(one.begin_ns, one.came_ns, run.duration_ns, at),
    }
