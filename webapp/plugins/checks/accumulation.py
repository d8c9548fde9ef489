"""Finds gradients that are reduced in every backward, though several add up before one step.

DistributedDataParallel reduces in every backward unless it runs in `no_sync()`. With k backward
passes per optimizer step, k - 1 of the reductions are of no use. Found where in nearly every step

- k >= 2 backward passes of a rank made the same reductions (group, shapes, dtypes, in order), and
- together they accumulated more gradients than there are parameters: they share some. Two models
  with a wrapper of their own share none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having, phases_of_kind
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.collective_calls import calls, calls_alone
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_ranks, need_recorded
from lanescope.webapp.analysis.parameter_history import rank_gradient_rows
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.checks.environment import ACCUMULATES
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

MIN_STEPS = 3
"""Steps beside the first, in which DDP also finds out the order of its buckets."""

_MIN_SHARE = 0.8
"""Of these steps."""

_COSTLY = 0.05
"""Share of a step from which it is a warning."""

_BACKWARD = schema.PhaseKind.backward


@dataclass(frozen=True)
class _Step:
    step: int
    passes: int  # that made the same reductions
    spare_ns: int  # in which reductions of all but the last of them ran
    first: pd.Series  # of the calls of no use


def accumulation(run: Run) -> list[Finding]:
    """Returns findings of kind `environment`, at most one. Raises NotApplicable."""
    need_ranks(run)
    reductions = need_recorded(_reductions(calls(run)), "record a backward that reduces gradients")
    found: dict[int, list[_Step]] = {}
    for rank in sorted(int(one) for one in reductions["rank"].unique()):
        steps = _steps(run, rank)
        if len(steps) >= max(MIN_STEPS, _MIN_SHARE * (len(run.steps(rank)) - 1)):
            found[rank] = steps
    return [_finding(run, found)] if found else []


def _reductions(rows: pd.DataFrame) -> pd.DataFrame:
    """The calls that reduce gradients within a backward."""
    return rows[(rows["phase"] == _BACKWARD.name) & rows["name"].str.startswith("all_reduce")]


@per_rank
def _steps(run: Run, rank: int) -> list[_Step]:
    """The steps of a rank in which the same gradients were reduced several times."""
    reductions = _reductions(calls_alone(run, rank))
    if reductions.empty:
        return []
    passes = _passes(run, rank)
    starts = passes["start_ns"].to_numpy()
    place = np.searchsorted(starts, reductions["start_ns"].to_numpy(), "right")
    inside = reductions.assign(backward=place - 1)[place > 0]
    first_step = int(passes["step"].min()) if len(passes) else 0
    # One pass of each step reduces nothing twice, and then no operator has to be read.
    several = inside.groupby("step")["backward"].nunique() > 1
    inside = inside[inside["step"].isin(several.index[several])]
    if inside.empty:
        return []
    parameters = rank_gradient_rows(run, rank)
    own = parameters[~parameters["missing"]]
    sizes = own.groupby("step")["parameter"].nunique()
    adds = _accumulations(run, rank, starts)
    found = []
    for step, rows in inside.groupby("step", sort=True):
        if int(str(step)) == first_step:
            continue
        made = {
            int(str(number)): tuple(zip(one["group"], one["shapes"], one["dtypes"], strict=True))
            for number, one in rows.groupby("backward", sort=True)
        }
        usual, times = Counter(made.values()).most_common(1)[0]
        same = [number for number, reduced in made.items() if reduced == usual]
        added = sum(adds[number] for number in same)
        if times < 2 or not added > sizes.get(step, np.inf):
            continue
        spare = rows[rows["backward"].isin(same[:-1])]
        ends = spare[["returned_ns", "done_ns"]].max(axis=1).to_numpy()
        time = Intervals.of(spare["start_ns"].to_numpy(), ends).total
        found.append(_Step(int(str(step)), times, int(time), spare.iloc[0]))
    return found


def _passes(run: Run, rank: int) -> pd.DataFrame:
    """Backward phases of a rank by start, without those inside of another."""
    columns = ["start_ns", "duration_ns", "step"]
    rows = phases_of_kind(run, _BACKWARD, rank, columns=columns).dropna(subset="duration_ns")
    ends = (rows["start_ns"] + rows["duration_ns"]).cummax().shift(fill_value=-1)
    return rows[rows["start_ns"] >= ends].reset_index(drop=True)


def _accumulations(run: Run, rank: int, starts: Int64Array) -> Counter[int]:
    """How many gradients each backward, by its start, added to a parameter."""
    found: Counter[int] = Counter()
    for piece in run.pieces("op", rank, columns=["start_ns", "name"]):
        times = piece["start_ns"].to_numpy()[having(piece["name"], ACCUMULATES.search)]
        numbers, counts = np.unique(np.searchsorted(starts, times, "right") - 1, return_counts=True)
        found.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    return found


def _finding(run: Run, found: dict[int, list[_Step]]) -> Finding:
    rank, steps = next(iter(found.items()))
    passes = int(np.median([one.passes for one in steps]))
    spare = float(np.median([one.spare_ns for one in steps]))
    bounds = run.steps(rank)
    share = spare / max(1.0, float(np.median(bounds.end_ns[1:] - bounds.start_ns[1:])))
    first = steps[0].first
    where = own_place(run, rank, int(first["stack"]) if first["stack"] >= 0 else None)
    start = int(first["start_ns"])
    at = at_place(where)
    return Finding(
        kind="environment",
        severity="warning" if share >= _COSTLY else "info",
        confidence="likely",
        title=f"Gradients are reduced {passes} times per optimizer step, in each of {passes} "
        f"backward passes that add up{at}. The reductions before the last take "
        f"{units.duration(spare)} of a step ({units.share(share)}). Run all passes but the last, "
        "with their forward, in model.no_sync(), or add up the losses for one backward.",
        rank=rank,
        ranks=tuple(found),
        step=steps[0].step,
        time_ns=start,
        where=where,
        evidence={
            "name": "no_sync",
            "set": "with model.no_sync()",
            "passes": passes,
            "spare_ns": int(spare),
            "share": share,
            "steps": len(steps),
        },
        link=timeline_address(start, max(int(first["returned_ns"]), start + 1), run.duration_ns),
    )
