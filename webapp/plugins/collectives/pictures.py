"""Pictures of the evidence of findings about collectives."""

from __future__ import annotations

import numpy as np

from lanescope.webapp.analysis.collective_calls import calls
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.headlines import CauseMark, HeatPicture
from lanescope.webapp.analysis.links import thread_lane
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals, lateness
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Float64Array

_MAX_RANKS = 12
"""Rows of a picture: the ranks that were latest, if there are more."""


def usual_latest(late: Float64Array) -> float:
    """Returns the end of a scale of colours, ns: of each column's latest arrival, all but a tenth.

    A few calls of the start are far later than all others, and would leave these pale.
    """
    latest = np.fmax.reduce(late, axis=0)
    return float(np.nanquantile(latest, 0.9)) or float(np.nanmax(latest))


def late_ranks(run: Run, _: Finding) -> HeatPicture | None:
    """Returns how late each rank came to the collectives of each step, as a share of the latest."""
    steps = arrivals(run)[[*COLLECTIVE_KEYS, "step"]]
    trained = {step for rank in run.ranks for step in run.steps(rank).index}
    if trained:  # what comes after the last step has the number of the next
        steps = steps[steps["step"].isin(trained)]
    table = (
        lateness(run).merge(steps, on=COLLECTIVE_KEYS).pivot_table("late_ns", "rank", "step", "max")
    )
    if table.empty or not table.to_numpy(float)[np.isfinite(table.to_numpy(float))].any():
        return None
    chosen = table.sum(axis=1).nlargest(_MAX_RANKS).index.sort_values()
    values = table.loc[chosen].to_numpy(float)
    usual = usual_latest(values)
    return HeatPicture(
        f"Late arrival by rank and step, up to {units.duration(usual)}",
        tuple(f"rank {rank}" for rank in chosen),
        np.minimum(values / usual, 1.0),
        f"step {table.columns[0]}",
        f"step {table.columns[-1]}",
    )


def late_gap(run: Run, finding: Finding) -> list[CauseMark]:
    """Returns the time in which the others had come to the worst call and the late rank had not."""
    worst = finding.evidence.get("worst")
    if worst is None:
        return []
    came = arrivals(run)
    same = (came["group"] == worst["group"]) & (came["sequence"] == worst["sequence"])
    return [
        CauseMark(
            thread_lane(rank, str(thread)),
            int(row.first_ns),
            int(row.last_ns),
            f"rank {rank} is {units.duration(row.skew_ns)} late",
        )
        for row in came[same].itertuples()
        for rank, thread in _callers(run, worst["group"], int(worst["sequence"])).items()
        if rank == row.last_rank
    ]


def never_came(run: Run, finding: Finding) -> list[CauseMark]:
    """Marks the time from the first arrival at a call to the end, on ranks that never made it."""
    evidence = finding.evidence
    if not evidence.get("missing") or evidence.get("sequence") is None:
        return []
    frame = calls(run)
    same = (frame["group"] == evidence["group"]) & (frame["sequence"] == evidence["sequence"])
    since = frame.loc[same, "start_ns"].min()
    if since != since:  # no rank made the call: NaN
        return []
    missing = {one["rank"] for one in evidence["missing"]} & set(run.ranks)
    missing -= set(frame.loc[same, "rank"])  # in a mismatch it may have come with another call
    first = {one.rank: one.thread for one in reversed(run.threads) if one.rank in missing}
    return [
        CauseMark(
            thread_lane(rank, thread), int(since), run.duration_ns, f"rank {rank} never came", True
        )
        for rank, thread in sorted(first.items())
    ]


def _callers(run: Run, group: str, sequence: int) -> dict[int, str]:
    """Rank -> thread that made a call."""
    frame = calls(run)
    rows = frame[(frame["group"] == group) & (frame["sequence"] == sequence)]
    return dict(zip(rows["rank"].astype(int), rows["thread"].astype(str), strict=True))
