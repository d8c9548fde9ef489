"""Answers /api/group_times: compares the steps of ranks, and of groups, as the timeline draws them.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import calls, exchanges, group_members
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.rank_groups import HOST, dimensions
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Float64Array, Int64Array
from lanescope.webapp.timeline.arguments import BadRequest, integer, window_of
from lanescope.webapp.timeline.timeline import NoSuch, Timeline

MAX_STEP_COLUMNS = 120
MAX_GROUPS = 32
_NAMED = 3
"""Slow ranks that a group, a column or a run names."""

_SCALE = 1.6
"""Times of the usual step that a lane is high; longer ones are cut off there."""

_Json = dict[str, Any]

SLOW = 1.2
DEVIATIONS = 7.0
MIN_EXCESS_NS = 100_000


def group_times(timeline: Timeline, arguments: Mapping[str, str]) -> _Json:
    """Returns own times (`rank_times`) of the groups that hold some ranks, ns.

    Arguments: by (a dimension of `rank_groups`), of (a rank of each group), t0, t1. The answer:
    columns ([start, end, first step, last step, typical]), waits_known, scale_ns (of a drawing),
    slowest ([rank, slow steps] of the run), steps (of the run), and groups, each with spread (a
    row of `own_spread` for each column), slow ([column, slow ranks, [rank, step, own], ...] where
    there are any) and slowest. Raises BadRequest, NoSuch.
    """
    times = rank_times(timeline.run)
    columns = Columns.of(times, window_of(arguments), MAX_STEP_COLUMNS)
    asked = [integer("of", one) for one in arguments.get("of", "").split(",", MAX_GROUPS)]
    if len(asked) > MAX_GROUPS:
        raise BadRequest(f"more than {MAX_GROUPS} groups in one request, ask for them in parts")
    groups = [_ranks(timeline.run, arguments.get("by", HOST), rank) for rank in asked]
    typical = times.typical_ns
    return {
        "columns": [
            [
                round(float(np.nanmedian(times.start_ns[:, low]))),
                round(float(np.nanmedian(times.end_ns[:, high - 1]))),
                *(int(times.steps[at]) for at in (low, high - 1)),
                round(float(np.median(typical[low:high]))),
            ]
            for low, high in zip(columns.low.tolist(), columns.high.tolist(), strict=True)
        ],
        "waits_known": times.waits_known,
        "scale_ns": round(_SCALE * float(np.median(typical))) if len(typical) else 0,
        "steps": len(times.steps),
        "slowest": _slowest(times, times.ranks),
        "groups": [
            {
                "spread": own_spread(times, columns, ranks),
                "slow": _slow(times, columns, ranks),
                "slowest": _slowest(times, ranks),
            }
            for ranks in groups
        ],
    }


def _ranks(run: Run, by: str, rank: int) -> list[int]:
    """The recorded ranks of the group of a rank."""
    if rank not in run.ranks:
        raise NoSuch(f"no rank {rank} in this run")
    if by == HOST:
        return list(run.ranks_by_host[run.hosts[rank]])
    found = next((one for one in dimensions(run) if one.name == by), None)
    if found is None:
        raise NoSuch(f"no groups of ranks by {by!r}")
    place = found.place_of(rank)
    known = {*run.ranks}
    if place is None:
        grouped = {one for ranks in found.groups.values() for one in ranks}
        return sorted(known - grouped)
    return [one for one in found.groups[place] if one in known]


def _slow(times: RankTimes, columns: Columns, ranks: Sequence[int]) -> list[list[Any]]:
    """The columns in which some of the ranks are slow, the slowest of them first."""
    rows = np.searchsorted(times.ranks, sorted(ranks))
    slow, own = times.slow[rows], times.own_ns[rows]
    found = []
    for column, (low, high) in enumerate(
        zip(columns.low.tolist(), columns.high.tolist(), strict=True)
    ):
        within = np.where(slow[:, low:high], own[:, low:high], -1.0)
        worst = within.max(axis=1)
        order = [row for row in np.argsort(-worst, kind="stable").tolist() if worst[row] >= 0]
        if order:
            named = [
                [
                    times.ranks[rows[row]],
                    int(times.steps[low + int(within[row].argmax())]),
                    round(float(worst[row])),
                ]
                for row in order[:_NAMED]
            ]
            found.append([column, len(order), *named])
    return found


def _slowest(times: RankTimes, ranks: Sequence[int]) -> list[list[int]]:
    """Ranks by the number of steps of the run in which they are slow, with that number."""
    rows = np.searchsorted(times.ranks, sorted(ranks))
    counts = times.slow[rows].sum(axis=1)
    order = np.argsort(-counts, kind="stable")[:_NAMED]
    return [[times.ranks[rows[row]], int(counts[row])] for row in order.tolist() if counts[row]]


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
