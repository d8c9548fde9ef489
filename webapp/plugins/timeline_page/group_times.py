"""Answers /api/group_times: the steps of groups of ranks, as the timeline draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lanescope.webapp.plugins.timeline_page.rank_times import (
    Columns,
    RankTimes,
    own_spread,
    rank_times,
)
from lanescope.webapp.runs.rank_groups import HOST, dimensions
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.arguments import BadRequest, integer, window_of
from lanescope.webapp.timeline.timeline import NoSuch, Timeline

MAX_STEP_COLUMNS = 120
MAX_GROUPS = 32
_NAMED = 3
"""Slow ranks that a group, a column or a run names."""

_SCALE = 1.6
"""Times of the usual step that a lane is high; longer ones are cut off there."""

_Json = dict[str, Any]


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
