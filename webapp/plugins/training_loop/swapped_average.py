"""Finds moving averages of a model that take almost all from the newest parameters.

`shadow.mul_(0.999).add_(p, alpha=0.001)` keeps the past. With the two numbers exchanged the shadow
is the model of now, and a target network follows at once. Found where an operator reads a parameter
that an optimizer changes, with the same weight of 0.9 to 1 at all steps: `lerp_()`, or one of two
operators whose weights add up to 1, and the other one reads a tensor that no optimizer changes.
"""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.loop_names import BLEND_FACTOR
from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_steps
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs.run import Run

_LEAST = 0.9  # weight of the newest parameters
_MIN_STEPS = 4
_MIN_PARAMETERS = 2
_ROUNDING = 1e-6
_LERP = re.compile(r"aten::(_foreach_)?lerp_?")
_STEP = re.compile(r".*\.step")
"""Names of phases of optimizers."""
_OTHERS = re.compile(rf"backward|{_STEP.pattern}")

_PLACE = ["thread", "start_ns", "depth"]


def swapped_average(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line and rank. Raises NotApplicable."""
    need_steps(run)
    need_accesses(run)
    found = []
    for rank in run.ranks:
        ops = _averages(run, rank)
        for stack, own in ops.groupby("stack", sort=False):
            often = own["step"].nunique() >= _MIN_STEPS
            several = own["storage"].nunique() >= _MIN_PARAMETERS
            if often and several and own["value"].nunique() == 1:
                found.append(_finding(run, rank, int(str(stack)), own))
    return found


def _averages(run: Run, rank: int) -> pd.DataFrame:
    """Operators that take most of a trained parameter: step, start_ns, thread, stack, value,
    storage."""
    factors = logged(run, rank, BLEND_FACTOR).rename(columns={"time_ns": "start_ns"})
    none = factors.assign(storage=0, stack=-1)[:0]
    if not (factors["value"] >= _LEAST).any():
        return none
    table = run.events("op", rank, columns=[*_PLACE, "name", "step", "phase", "stack"])
    outside = ~having(table["phase"], _OTHERS.fullmatch)
    known = pc.is_in(table["start_ns"], pa.array(factors["start_ns"].unique()))
    ops = to_frame(table.filter(pc.and_(pa.array(outside), known)))
    ops = ops[ops["stack"] >= 0].merge(factors[["thread", "start_ns", "value"]])
    trained = _trained(run, rank) if (ops["value"] >= _LEAST).any() else set()
    if not trained:
        return none
    columns = [*_PLACE, "storage", "birth"]
    accesses = run.events("access", rank, columns=columns)
    rows = to_frame(accesses.filter(pc.is_in(accesses["start_ns"], pa.array(ops["start_ns"]))))
    rows = rows[~rows["birth"]].merge(ops[_PLACE])
    theirs = rows[rows["storage"].isin(trained)].drop_duplicates(_PLACE)
    ops = ops.merge(theirs[[*_PLACE, "storage"]], how="left", on=_PLACE)
    ops = ops.sort_values(["thread", "start_ns"], ignore_index=True)
    return ops[_takes_most(ops)]


def _takes_most(ops: pd.DataFrame) -> pd.Series:
    """Which operators, in their order, take most of a trained parameter, and the rest of another
    tensor."""
    reads = ops["storage"].notna()
    other = pd.Series(False, ops.index)
    for distance in (1, -1):
        near = ops.shift(distance)
        adds_up = (near["value"] + ops["value"] - 1).abs() < _ROUNDING
        other |= adds_up & (near["thread"] == ops["thread"]) & near["storage"].isna()
    lerp = ops["name"].astype("str").str.fullmatch(_LERP.pattern)
    return reads & (ops["value"] >= _LEAST) & (other | lerp)


def _trained(run: Run, rank: int) -> set[int]:
    """Storages of parameters that a step of an optimizer writes."""
    names = run.events("storage", rank, columns=["storage", "name"]).to_pandas()
    held = set(gradient_rows(run)["parameter"])
    named = set(names.loc[names["name"].isin(held), "storage"])
    phases = run.events("phase", rank, columns=["thread", "start_ns", "duration_ns", "name"])
    steps = to_frame(phases.filter(pa.array(having(phases["name"], _STEP.fullmatch)))).dropna()
    found: set[int] = set()
    for _, step in steps.drop_duplicates(["thread", "name"]).iterrows():
        window = int(step["start_ns"]), int(step["start_ns"] + step["duration_ns"])
        rows = run.events("access", rank, step["thread"], ["storage", "write"], window)
        found |= set(rows.filter(rows["write"])["storage"].to_pylist())
    return found & named


def _finding(run: Run, rank: int, stack: int, own: pd.DataFrame) -> Finding:
    first = own.iloc[0]
    where = own_place(run, rank, stack)
    at = f" at {where}" if where else ""
    share = float(first["value"])
    return finding_at(
        run,
        rank,
        first,
        kind="wrong_average",
        confidence="likely",
        title=f"The moving average{at} is mixed the wrong way round: in each step it takes "
        f"{share:g} of the newest parameters and {1 - share:.3g} of what it was, so it is the "
        "model of now and averages nothing. Exchange the two numbers: "
        f"average.lerp_(parameter, {1 - share:.3g}).",
        where=where,
        evidence={"cause": "swapped_average", "share": share},
    )
