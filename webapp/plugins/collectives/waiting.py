"""How long does each rank wait for others to come to a collective, in a window of time?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pandas as pd

from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.plugins.collectives.skew import KEYS, arrivals
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run


def waiting(run: Run, window: tuple[int, int] | None = None) -> pd.DataFrame:
    """One row per rank that made a collective: rank, waiting_ns, share.

    waiting(r) = |union over collectives of [start_r, max start) & W|
    with the starts of `skew`: the time in which rank r had come and another had not. share is of
    the window W = [t0, t1), by default the whole run.
    """
    low, high = window if window is not None else (0, max(run.duration_ns, 1))
    rows = [
        {
            "rank": rank,
            "waiting_ns": (own := lane.clip(low, high).total),
            "share": own / (high - low),
        }
        for rank, lane in sorted(_waits(run).items())
    ]
    return pd.DataFrame(rows, columns=["rank", "waiting_ns", "share"])


@lru_cache(maxsize=4)  # a page asks for one window after another
def _waits(run: Run) -> Mapping[int, Intervals]:
    calls = collective_calls(run).merge(arrivals(run)[[*KEYS, "last_ns"]], on=KEYS)
    return {
        int(rank): Intervals.of(own["start_ns"].to_numpy(), own["last_ns"].to_numpy())
        for rank, own in calls.groupby("rank")
    }
