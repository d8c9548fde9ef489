"""Does one rank keep all others waiting, step after step?

With rounds the training steps (or single collectives, where a program has no steps), a rank is a
straggler when in the median round it alone delays the others by a fifth of the round or more:

    median over rounds of (sum of alone_ns of the rank in the round / length of the round) >= 0.2

`alone_ns` is the time between the last and the last but one arrival, see `skew`. A rank that is
last by chance is last in less than half of the rounds, so its median is 0.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp import units
from lanescope.webapp.analysis.findings import Finding, Unanswered
from lanescope.webapp.analysis.links import group_lane, timeline_address
from lanescope.webapp.analysis.skew import arrivals
from lanescope.webapp.run import Run

FEWEST_ROUNDS = 6
"""The first round is left out (everything is slow once); fewer than five others tell nothing."""

SHARE = 0.2

SHORTEST_NS = 1_000_000
"""A round shorter than this is dominated by the operating system's scheduler."""


def stragglers(run: Run) -> list[Finding]:
    """Findings of kind `straggler`. Raises Unanswered where there are no collectives to look at."""
    if run.world_size == 1:
        raise Unanswered("the job has a single rank")
    came = arrivals(run)
    came = came[came["ranks"] > 1]
    if came.empty:
        raise Unanswered("no collective was recorded on two ranks or more")
    rounds = by_round(came)
    found = []
    for rank, shares in rounds.items():
        if len(shares) >= FEWEST_ROUNDS - 1 and shares["share"].median() >= SHARE:
            found.append(_finding(run, int(str(rank)), shares, came))
    return found


def by_round(came: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Per rank that is ever last, a row per round: round, length_ns, alone_ns, share."""
    key = "step" if came["step"].nunique() >= FEWEST_ROUNDS else None
    number = came[key] if key else pd.Series(np.arange(len(came)), index=came.index)
    ends = came.groupby(number)["last_ns"].max().sort_index()
    length = ends.diff().iloc[1:]
    length = length[length >= SHORTEST_NS]
    alone = came.groupby([came["last_rank"], number])["alone_ns"].sum()
    found = {}
    for rank in sorted(came["last_rank"].unique()):
        mine = alone.loc[rank].reindex(length.index, fill_value=0)
        table = pd.DataFrame({"length_ns": length, "alone_ns": mine}).rename_axis("round")
        found[int(rank)] = table.assign(share=table["alone_ns"] / table["length_ns"]).reset_index()
    return found


def _finding(run: Run, rank: int, shares: pd.DataFrame, came: pd.DataFrame) -> Finding:
    mine = came[came["last_rank"] == rank]
    worst = mine.loc[mine["alone_ns"].idxmax()]
    share, delay = float(shares["share"].median()), float(shares["alone_ns"].median())
    late = int((shares["alone_ns"] > 0).sum())
    start = int(worst["last_ns"])
    at = (group_lane(rank, str(worst["group"])), start)
    return Finding(
        kind="straggler",
        severity="warning",
        title=(
            f"rank {rank} keeps the other ranks waiting: {units.duration(delay)} of each step, "
            f"{units.share(share)} of it; it came last in {late} of {len(shares)} steps"
        ),
        rank=rank,
        ranks=(rank,),
        step=int(worst["step"]),
        time_ns=int(mine["first_ns"].min()),
        evidence={
            "share": share,
            "delay_ns": int(delay),
            "rounds": len(shares),
            "last_in": late,
            "total_ns": int(mine["alone_ns"].sum()),
            "worst": {
                "group": str(worst["group"]),
                "sequence": int(worst["sequence"]),
                "op": str(worst["name"]),
                "skew_ns": int(worst["skew_ns"]),
            },
        },
        link=timeline_address(int(worst["first_ns"]), start, run.duration_ns, at),
    )
