"""Finds evaluation that only some ranks run, while the others wait in their next collective call.

An evaluation (a module called without gradients) belongs to the collective call that its rank makes
next. A call is *lone* where only ranks that came last to it had evaluated before it. It is found
where the delay of lone calls stands out from that of all others by the factor `STANDS_OUT`. Calls
after the last training step are left out.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.collective_calls import call_title, collective_calls
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.collectives.skew import (
    COLLECTIVE_KEYS,
    MIN_SKEW_NS,
    arrival_evidence,
    comparable_arrivals,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_EVALUATION = schema.PhaseKind.evaluation

STANDS_OUT = 3.0
"""Times the longest of nine in ten other delays; of a single evaluation, its square."""

_COSTLY = 0.02
"""Share of the run from which it is a warning."""


def lone_evaluation(run: Run) -> list[Finding]:
    """Returns findings of kind `straggler`, one per rank that evaluates. Raises NotApplicable."""
    came = comparable_arrivals(run).reset_index(drop=True)
    starts = {rank: _evaluations(run, rank) for rank in run.ranks}
    belongs = {rank: _next_calls(run, rank, begun) for rank, begun in starts.items() if len(begun)}
    if not belongs:
        raise NotApplicable("no rank evaluates the model")
    called = pd.MultiIndex.from_frame(came[COLLECTIVE_KEYS])
    evaluated = pd.DataFrame(
        {rank: called.isin(before) for rank, before in belongs.items()}, index=came.index
    )
    delay = (came["alone_ns"] - came["runnable_ns"]).clip(lower=0)
    found = []
    for rank in belongs:
        alone = evaluated[rank] & (evaluated.sum(axis=1) == 1)
        late = came[alone & (came["last_rank"] == rank)]
        late = late[late["step"] <= _last_step(run)]
        if len(late) < max(1, alone.sum() / 2):
            continue
        others = delay[~evaluated.any(axis=1)]
        usual = float(others.quantile(0.9)) if len(others) else 0.0
        factor = STANDS_OUT if len(late) > 1 else STANDS_OUT**2
        waits = delay[late.index]
        if waits.median() >= max(MIN_SKEW_NS, factor * usual):
            found.append(_finding(run, rank, late.assign(wait=waits), starts[rank]))
    return found


def _last_step(run: Run) -> int:
    """The last training step of the job: no rank trains after it."""
    return max((int(run.steps(rank).index.max(initial=-1)) for rank in run.ranks), default=-1)


def _evaluations(run: Run, rank: int) -> Int64Array:
    """Starts of a rank's evaluation phases, ascending."""
    starts: Int64Array = phases_of_kind(run, _EVALUATION, rank)["start_ns"].to_numpy()
    return starts


def _next_calls(run: Run, rank: int, begun: Int64Array) -> pd.MultiIndex:
    """The first collective call of a rank after each evaluation, as (group, sequence)."""
    calls = collective_calls(run)
    own = calls[calls["rank"] == rank]
    place = np.unique(np.searchsorted(own["start_ns"].to_numpy(), begun))
    return pd.MultiIndex.from_frame(own.iloc[place[place < len(own)]][COLLECTIVE_KEYS])


def _finding(run: Run, rank: int, late: pd.DataFrame, begun: Int64Array) -> Finding:
    worst = late.loc[late["wait"].idxmax()]
    total, usual = int(late["wait"].sum()), float(late["wait"].median())
    first, last = int(worst["first_ns"]), int(worst["last_ns"])
    others = tuple(one for one in run.ranks if one != rank)
    since = int(begun[max(0, int(np.searchsorted(begun, last)) - 1)])
    places = (
        phase_place(run, rank, _EVALUATION.name, (int(begin), int(end)))
        for begin, end in zip(late["first_ns"] - late["wait"], late["last_ns"], strict=True)
    )
    where = next(filter(None, places), None)
    group, sequence = str(worst["group"]), int(worst["sequence"])
    share = total / max(1, run.duration_ns)
    name = call_title(run, str(worst["name"]), group, sequence)
    doing = "evaluates alone" + at_place(where)
    return Finding(
        kind="straggler",
        severity="warning" if share >= _COSTLY else "info",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, (rank,)))} {doing} and keeps "
        f"{ranks_in(run, others)} waiting for {units.duration(usual)} each time "
        f"({units.counted(len(late), 'time')}, {units.share(share)} of the run), longest "
        f"in {name}. Share the evaluation among all ranks, or let the others go on "
        "without a collective call.",
        rank=rank,
        step=int(worst["step"]),
        time_ns=since,
        where=where,
        evidence={
            "cause": "evaluation",
            "share": share,
            "delay_ns": int(usual),
            "total_ns": total,
            "rounds": len(late),
            "worst": arrival_evidence(worst),
        },
        link=timeline_address(first, last, run.duration_ns, (group_lane(rank, group), last)),
    )
