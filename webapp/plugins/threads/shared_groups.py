"""Finds process groups whose collectives two threads call in no fixed order.

The n-th call of a group on one rank meets the n-th call on the others. Where two threads call, and
nothing decides which comes first, ranks may decide otherwise: they hang, fail, or add up the wrong
tensors. A lock does not help: who takes it first is left to chance on each rank.
"""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.collective_calls import POINT_TO_POINT, calls, group_title
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.races.races import processes_of
from lanescope.webapp.plugins.races.vector_clocks import order_of
from lanescope.webapp.runs.run import Run

_KEPT = 500
"""Calls of a thread in a group that are compared."""


def unordered_calls(run: Run) -> list[Finding]:
    """Returns findings of kind `collective_mismatch`, one per group. Raises NotApplicable."""
    frame = calls(run)
    frame = frame[~frame["name"].isin(POINT_TO_POINT) & (frame["group_size"] > 1)]
    if frame.empty:
        raise NotApplicable("the program makes no collective call")
    # Threads of torch call for a pass of backward that another thread waits for.
    own = {
        (one.rank, one.thread) for one in run.threads if one.kind != schema.ThreadKind.native.name
    }
    found: dict[str, Finding] = {}
    for (rank, group), rows in frame.groupby(["rank", "group"], sort=True):
        if str(group) in found:
            continue
        threads = [one for one in rows["thread"].astype(str).unique() if (rank, one) in own]
        both = _unordered(run, int(rank), rows, threads) if len(threads) > 1 else None
        if both is not None:
            found[str(group)] = _finding(run, int(rank), str(group), both)
    return list(found.values())


def _unordered(run: Run, rank: int, rows: pd.DataFrame, threads: list[str]) -> pd.DataFrame | None:
    """Two calls where neither happened before the other, or None."""
    for process in processes_of(run, rank):
        mine = [one for one in threads if one in process]
        if len(mine) < 2:
            continue
        order = order_of(run, rank, process, mine, by_locks=False)
        by = {one: rows[rows["thread"].astype(str) == one].head(_KEPT) for one in mine}
        for one, other in combinations(mine, 2):
            sides = [by[side]["start_ns"].to_numpy() for side in (one, other)]
            both = order.unordered(mine.index(one), sides[0], mine.index(other), sides[1])
            if both is not None:
                return pd.concat([by[one].iloc[[both[0]]], by[other].iloc[[both[1]]]])
    return None


def _finding(run: Run, rank: int, group: str, both: pd.DataFrame) -> Finding:
    names = {one.thread: one.name for one in run.threads_of(rank)}
    both = both.sort_values("start_ns")
    rows = list(both.itertuples())
    places = [where_of(run, rank, int(row.stack)) for row in rows]
    said = [
        f"{names[str(row.thread)]} calls {row.name}" + at_place(place)
        for row, place in zip(rows, places, strict=True)
    ]
    last = rows[-1]
    return Finding(
        kind="collective_mismatch",
        severity="warning",
        confidence="likely",
        title=f"Two threads of a rank call collectives of {group_title(run, group)} in no fixed "
        f"order: {' and '.join(said)}. Ranks may order them differently, and then hang or add up "
        "the wrong tensors; a lock does not prevent that. Give one of the threads a group of its "
        "own (torch.distributed.new_group).",
        rank=rank,
        thread=str(last.thread),
        step=int(last.step),
        time_ns=int(last.start_ns),
        where=places[-1],
        evidence={
            "group": group,
            "sequence": int(last.sequence),
            "op": {str(rank): str(last.name)},
            "waiting": [],
            "missing": [],
            "called_at": {str(rank): places[-1]},
        },
        link=timeline_address(
            int(rows[0].start_ns),
            int(last.start_ns) + 1000,
            run.duration_ns,
            (group_lane(rank, group), int(last.start_ns)),
        ),
    )
