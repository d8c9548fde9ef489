"""Finds training whose steps take longer and longer, and the place of the program that grows.

The steps but the first are cut into quarters. From the second quarter on the median step is longer
in each, and in the last one longer by half than in both first. One place of the program makes
half of what the last quarter has more than the first, and grows twice as fast as the rest: on a
machine that becomes busier all places grow alike. A place that the first quarter does not reach is
of another training, whose steps are longer from the beginning. Where several threads step
optimizers, as those of a server do for each that asks, the length of a step is that of what asks.
"""

from __future__ import annotations

import numpy as np

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotRecorded, finding_at
from lanescope.webapp.plugins.collectives.slow_places import (
    EXPLAINS,
    line_between,
    times_by_place,
)
from lanescope.webapp.plugins.time.breakdown import rank_step_time, training_thread
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_MIN_STEPS = 40
_MIN_RATIO, _SUSPECT = 1.5, 1.1
_MIN_GROWTH_NS = 2_000_000
_TWICE = 2.0
_NOT_OWN = ("exposed_communication_ns", "waiting_for_ranks_ns", "waiting_for_threads_ns")
_Window = tuple[int, int]


def slowing(run: Run) -> list[Finding]:
    """Returns findings of kind `growth`, one per rank and place. Raises NotApplicable."""
    if all(len(run.steps(rank).index) <= _MIN_STEPS for rank in run.ranks):
        raise NotRecorded(f"record more than {_MIN_STEPS} steps")
    found: dict[str, Finding] = {}
    for rank in run.ranks:
        one = _of_rank(run, rank)
        if one is not None:
            found.setdefault(str(one.where), one)
    return [*found.values()]


@per_rank
def _of_rank(run: Run, rank: int) -> Finding | None:
    bounds = run.steps(rank)
    if _growth(bounds.end_ns[1:] - bounds.start_ns[1:], _SUSPECT) is None:
        return None  # so that waits need not be known
    updates = phases_of_kind(run, schema.PhaseKind.optimizer, rank, None, ["start_ns", "thread"])
    if updates["thread"].nunique() > 1:
        return None
    steps = rank_step_time(run, rank).iloc[1:]
    own = steps["duration_ns"] - steps[list(_NOT_OWN)].sum(axis=1)
    grown = _growth(own.to_numpy(), _MIN_RATIO)
    if grown is None:
        return None
    first, last = grown
    parts = _quarters(len(steps))
    ends = (steps["start_ns"] + steps["duration_ns"]).to_numpy()
    starts = steps["start_ns"].to_numpy()
    outer = parts[0], parts[-1]
    windows = [(int(starts[part[0]]), int(ends[part[-1]])) for part in outer]
    place = _growing_place(run, rank, windows, [len(part) for part in outer])
    if place is None:
        return None
    (here, there), (less, more) = place
    thread = training_thread(run, rank).thread
    line = line_between(run, rank, thread, windows[-1], (here, there))
    here, there = (line, line) if line else (here, there)
    between = f"at {here}" if here == there else f"between {here} and {there}"
    step = int(steps["step"].iloc[-1])
    return finding_at(
        run,
        rank,
        step,
        kind="growth",
        severity="info",
        confidence="likely",
        title=f"Steps take longer and longer: {units.duration(first)} in the first quarter, "
        f"{units.duration(last)} in the last one. What grows is {between}, from "
        f"{units.duration(less)} to {units.duration(more)} a step. Look there for a list, a tensor "
        "or a file that gets longer with each step.",
        where=here,
        evidence={"cause": "slowing", "first_ns": int(first), "last_ns": int(last)},
    )


def _quarters(steps: int) -> list[Int64Array]:
    return np.array_split(np.arange(steps), 4)


def _growth(lengths: Int64Array, ratio: float) -> tuple[float, float] | None:
    """The median step of the first and the last quarter; None where they do not grow by `ratio`."""
    if len(lengths) < _MIN_STEPS:
        return None
    first, second, third, last = (
        float(np.median(lengths[part])) for part in _quarters(len(lengths))
    )
    before = max(first, second)
    grows = second < third < last and last >= ratio * before and last - before >= _MIN_GROWTH_NS
    return (first, last) if grows else None


def _growing_place(
    run: Run, rank: int, windows: list[_Window], steps: list[int]
) -> tuple[tuple[str, str], tuple[float, float]] | None:
    """The place, and its ns per step in both windows; None where none explains the growth."""
    thread = training_thread(run, rank).thread
    early, late = (
        {place: time / count for place, time in times_by_place(run, rank, thread, window).items()}
        for window, count in zip(windows, steps, strict=True)
    )
    grown = {place: time - early.get(place, 0.0) for place, time in late.items() if any(place)}
    place = max(grown, key=lambda one: grown[one], default=None)
    if place not in early:
        return None
    less, more = early[place], late[place]
    rest_less, rest_more = sum(early.values()) - less, sum(late.values()) - more
    explains = grown[place] >= EXPLAINS * (more + rest_more - less - rest_less)
    alone = more * rest_less >= _TWICE * less * rest_more
    return (place, (less, more)) if explains and alone and grown[place] > 0 else None
