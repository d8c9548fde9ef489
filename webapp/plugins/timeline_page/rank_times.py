"""Compares the steps of ranks: how long each works in a step before it waits for others.

    own(r, s) = length of step s on rank r - time in which r waits for other ranks
    typical(s) = median of own(r, s) over all ranks

A rank waits from its call of a collective to the call of the last rank (`skew.arrivals`), and from
a receive to the call that sends, unless it begins another call meanwhile: then it works. It also
waits in receives, and in calls of groups with ranks that were not recorded, until they return.
Where clocks were not compared, no wait is known, and own is the length of the step.

A rank is slow in a step where own is above SLOW of the typical one, by more than DEVIATIONS times
the median deviation from it, and by MIN_EXCESS_NS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import calls, exchanges, group_members
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Float64Array, Int64Array

SLOW = 1.2
DEVIATIONS = 7.0
MIN_EXCESS_NS = 100_000


@dataclass(frozen=True, eq=False)
class RankTimes:
    """Steps of all ranks, ns from the start of the run: arrays of ranks x steps; NaN: not there."""

    ranks: tuple[int, ...]
    steps: Int64Array
    start_ns: Float64Array
    end_ns: Float64Array
    own_ns: Float64Array
    waits_known: bool

    @cached_property
    def typical_ns(self) -> Float64Array:
        """Median of own over ranks, by step."""
        return np.nanmedian(self.own_ns, axis=0)

    @cached_property
    def slow(self) -> BoolArray:
        """Whether a rank is slow in a step."""
        typical = self.typical_ns
        excess = self.own_ns - typical
        usual = np.nanmedian(np.abs(excess), axis=0)
        least = np.maximum(DEVIATIONS * usual, MIN_EXCESS_NS)
        found: BoolArray = (excess > np.maximum(least, (SLOW - 1) * typical)).astype(np.bool_)
        return found


@lru_cache(maxsize=4)
def rank_times(run: Run) -> RankTimes:
    """Returns the steps of all ranks of a run; without columns where no step was recorded."""
    steps = [run.steps(rank) for rank in run.ranks]
    numbers = np.unique(np.concatenate([of.index for of in steps]))
    start, end, own = np.full((3, len(steps), len(numbers)), np.nan)
    waits = _waits(run) if run.clock_calibrated and len(run.ranks) > 1 else {}
    for i, (rank, of) in enumerate(zip(run.ranks, steps, strict=True)):
        at = np.searchsorted(numbers, of.index)
        start[i, at], end[i, at] = of.start_ns, of.end_ns
        own[i, at] = of.end_ns - of.start_ns
        if rank in waits:
            own[i, at] -= _within(waits[rank], of.end_ns) - _within(waits[rank], of.start_ns)
    return RankTimes(run.ranks, numbers, start, end, own, bool(waits))


def _waits(run: Run) -> dict[int, Intervals]:
    """When each rank waits for others."""
    every = calls(run)[["rank", *COLLECTIVE_KEYS, "name", "start_ns", "returned_ns"]]
    every = every.assign(following=every.groupby("rank")["start_ns"].shift(-1).fillna(np.inf))
    recorded = {*run.ranks}
    partial = [group for group, ranks in group_members(run).items() if not recorded >= {*ranks}]
    within = every["group"].isin(partial) | (every["name"] == "recv")
    came = every.merge(arrivals(run)[[*COLLECTIVE_KEYS, "last_ns"]], on=COLLECTIVE_KEYS)
    sent, received = [], []
    for one in exchanges(run):
        number = min(len(one.sends), len(one.receives))
        sent += one.sends["start_ns"].tolist()[:number]
        received += one.receives.index.tolist()[:number]
    parts = (
        came,
        every[within].rename(columns={"returned_ns": "last_ns"}),
        every.loc[received].assign(last_ns=np.array(sent, np.int64)),
    )
    rows = pd.concat(one[["rank", "start_ns", "last_ns", "following"]] for one in parts)
    rows = rows[(rows["last_ns"] > rows["start_ns"]) & (rows["following"] >= rows["last_ns"])]
    return {
        int(str(rank)): Intervals.of(own["start_ns"].to_numpy(), own["last_ns"].to_numpy())
        for rank, own in rows.groupby("rank")
    }


def _within(waits: Intervals, until_ns: Int64Array) -> Int64Array:
    """How long a rank has waited before each instant, ns."""
    before = np.concatenate([[0], np.cumsum(waits.end - waits.start)])
    at = np.searchsorted(waits.start, until_ns)
    over = np.maximum(np.concatenate([[0], waits.end])[at] - until_ns, 0)
    waited: Int64Array = (before[at] - np.where(at > 0, over, 0)).astype(np.int64)
    return waited


@dataclass(frozen=True, eq=False)
class Columns:
    """Steps that are shown together: [low[i], high[i]) are places of steps."""

    low: Int64Array
    high: Int64Array

    @classmethod
    def of(cls, times: RankTimes, window: tuple[int, int], most: int) -> Columns:
        """Returns at most so many columns of the steps that have an instant in a window."""
        first = np.nanmin(times.start_ns, axis=0, initial=np.inf)
        last = np.nanmax(times.end_ns, axis=0, initial=-np.inf)
        places = np.flatnonzero((first < window[1]) & (last > window[0]))
        if not len(places):
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        each = -(-(len(places) + most) // most) if len(places) > most else 1
        # The same steps share a column wherever the window begins.
        low = np.arange(places[0] // each * each, places[-1] + 1, each)
        return cls(low, np.minimum(low + each, len(times.steps)))


def own_spread(times: RankTimes, columns: Columns, ranks: Sequence[int]) -> list[list[int | None]]:
    """Returns of some ranks, by column: least, median and greatest own time, ns, and of the
    greatest the rank and the step; None where none of the ranks has the steps."""
    rows = np.searchsorted(times.ranks, sorted(ranks))
    found: list[list[int | None]] = []
    for low, high in zip(columns.low.tolist(), columns.high.tolist(), strict=True):
        own = times.own_ns[rows, low:high]
        if np.isnan(own).all():
            found.append([None] * 5)
            continue
        row, step = np.unravel_index(np.nanargmax(own), own.shape)
        figures = (np.nanmin(own), np.nanmedian(own), np.nanmax(own))
        where = (times.ranks[rows[row]], int(times.steps[low + step]))
        found.append([*(round(float(one)) for one in figures), *where])
    return found
