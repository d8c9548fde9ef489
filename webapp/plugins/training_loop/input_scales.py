"""Finds evaluations of inputs that are far larger or smaller than those of training.

Images are divided by 255 or normalised in the transform of one dataset and not in that of the
other. Each call in evaluation mode that is compared with targets, in two steps or more, gets
numbers whose root mean square is `_TIMES` that of all sampled calls in training, or a part of it.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import EVALUATED_SCALE, INPUT_SCALE
from lanescope.webapp.analysis.arrow_columns import ops_named
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import first_place
from lanescope.webapp.plugins.training_loop.evaluations import COMPARES
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_TIMES = 30.0
_MIN_TRAINED, _MIN_EVALUATED, _MIN_STEPS = 4, 4, 2  # calls, and steps of evaluations


def input_scales(run: Run) -> list[Finding]:
    """Returns findings of kind `evaluation_mode`, at most one per rank. Raises NotApplicable."""
    evaluated = logged(run, None, prefix=EVALUATED_SCALE)
    if evaluated.empty:
        raise NotApplicable("record an evaluation without gradients, with --level access")
    trained = logged(run, None, prefix=INPUT_SCALE)
    found: dict[int, Finding] = {}
    for (key, name), own in evaluated.groupby(["rank", "name"], sort=True, observed=True):
        rank = int(str(key))
        ours = trained[(trained["rank"] == rank) & (trained["name"] == name)]["value"]
        if rank in found or len(ours) < _MIN_TRAINED or ours.min() <= 0:
            continue
        larger = own["value"].min() >= _TIMES * ours.max()
        smaller = own["value"].min() > 0 and own["value"].max() <= ours.min() / _TIMES
        if larger or smaller:
            stacks = _compared(run, rank, own)
            if stacks is not None:
                found[rank] = _finding(run, rank, own, ours, stacks)
    return list(found.values())


def _compared(run: Run, rank: int, calls: pd.DataFrame) -> list[int] | None:
    """Stacks of what the evaluations are compared at; None if some are not, or if there are few."""
    if len(calls) < _MIN_EVALUATED or calls["step"].nunique() < _MIN_STEPS:
        return None
    threads = calls["thread"].astype("str").unique()
    if len(threads) > 1:
        return None
    columns = ["start_ns", "name", "sequence", "stack"]
    ops = ops_named(run, rank, threads[0], columns, COMPARES.__contains__)
    ops = ops[ops["sequence"].isna()].sort_values("start_ns")
    begins = calls["time_ns"].sort_values()
    after = pd.Series(ops["start_ns"].searchsorted(begins))
    alone = after.duplicated(keep="last")  # another call begins before the next comparison
    if alone.any() or (after >= len(ops)).any():
        return None
    return [int(one) for one in ops["stack"].iloc[after].dropna()]


def _finding(
    run: Run, rank: int, own: pd.DataFrame, trained: pd.Series, stacks: list[int]
) -> Finding:
    where = first_place(run, rank, stacks)
    usual, other = float(trained.median()), float(own["value"].median())
    return finding_at(
        run,
        rank,
        own.iloc[0],
        kind="evaluation_mode",
        confidence="likely",
        title=f"The inputs of evaluation are on another scale than those of training"
        f"{f' at {where}' if where else ''}: their root mean square is {units.number(other)} in "
        f"{units.count(len(own))} calls, and {units.number(usual)} in training. Normalise both "
        "alike: pass the same transform to both datasets.",
        where=where,
        evidence={"cause": "input_scale", "evaluated": other, "trained": usual},
    )
