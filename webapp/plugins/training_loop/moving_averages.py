"""Finds moving averages of a model that are the model itself.

`shadow = {n: p.data for n, p in model.named_parameters()}` holds the parameters, not copies:
`shadow.mul_(0.99).add_(p, alpha=0.01)` then averages each with itself, which leaves it as it is.
Found where, outside of optimizers and backward, an operator reads and writes nothing but one
parameter, though it gets two tensors: lerp_, or add_ right after mul_.
"""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_steps
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 5
_MIN_PARAMETERS = 2
_SCALES = "aten::mul_"
_ADDS, _BLENDS = "aten::add_", "aten::lerp_"
_OTHERS = re.compile(r"backward|.*\.step")
"""Names of phases of backward and of optimizers."""

_PLACE = ["thread", "start_ns", "depth"]


def self_average(run: Run) -> list[Finding]:
    """Returns findings of kind `shared_parameter`, one per line and rank. Raises NotApplicable."""
    need_steps(run)
    need_accesses(run)
    found = []
    for rank in run.ranks:
        ops = _onto_itself(run, rank)
        for stack, own in ops.groupby("stack", sort=False):
            names = list(own["name_of"].drop_duplicates())
            if own["step"].nunique() >= _MIN_STEPS and len(names) >= _MIN_PARAMETERS:
                found.append(_finding(run, rank, int(str(stack)), own, names))
    return found


def _onto_itself(run: Run, rank: int) -> pd.DataFrame:
    """Averages of a parameter with itself: step, stack, start_ns, thread, name_of."""
    columns = [*_PLACE, "name", "step", "phase", "stack", "shapes"]
    table = run.events("op", rank, columns=columns)
    wanted = having(table["name"], {_SCALES, _ADDS, _BLENDS}.__contains__)
    ops = to_frame(table.filter(pa.array(wanted & ~having(table["phase"], _OTHERS.fullmatch))))
    ops = ops[ops["stack"] >= 0]
    ops["two"] = ops["shapes"].astype("str").map(_same_twice).astype(bool)
    if not ops.loc[ops["name"] != _SCALES, "two"].any():
        return ops.assign(name_of="")[:0]
    names = run.events("storage", rank, columns=["pid", "storage", "name"]).to_pandas()
    names = names.rename(columns={"name": "name_of"}).drop_duplicates("storage")
    if ops.empty or names.empty:
        return ops.assign(name_of="")[:0]
    ops["name"] = ops["name"].astype("str")
    columns = [*_PLACE, "storage", "offset", "bytes", "write"]
    accesses = run.events("access", rank, columns=columns)
    theirs = pc.is_in(accesses["start_ns"], pa.array(ops["start_ns"]))
    rows = to_frame(accesses.filter(theirs))
    rows["thread"] = rows["thread"].astype("str")
    ops["thread"] = ops["thread"].astype("str")
    groups = rows.merge(ops[_PLACE], on=_PLACE).groupby(_PLACE)
    ranges = groups[["storage", "offset", "bytes"]].nunique().max(axis=1)
    touched = groups.agg(storage=("storage", "first"), write=("write", "any"))
    touched = touched.assign(ranges=ranges)
    ops = ops.merge(touched.reset_index(), on=_PLACE)
    ops = ops[(ops["ranges"] == 1) & ops["write"]].merge(names, on="storage")
    ops = ops.sort_values(["thread", "start_ns"])
    before = ops.shift()
    scaled = (before["name"] == _SCALES) & (before["storage"] == ops["storage"])
    averages = (ops["name"] == _BLENDS) | ((ops["name"] == _ADDS) & scaled)
    return ops[averages & ops["two"]]


def _same_twice(shapes: str) -> bool:
    """Whether an operator got two tensors of one shape: "[32, 16] [32, 16]"."""
    parts = shapes.split("] ")
    return len(parts) >= 2 and parts[0] == parts[1].rstrip("]")


def _finding(run: Run, rank: int, stack: int, own: pd.DataFrame, names: list[str]) -> Finding:
    first = own.iloc[0]
    where = own_place(run, rank, stack)
    at = f" at {where}" if where else ""
    return finding_at(
        run,
        rank,
        first,
        kind="shared_parameter",
        title=f"The average{at} is of a parameter with itself, {names[0]}"
        f"{and_more(len(names), 'parameter')}, in {units.count(own['step'].nunique())} steps: what "
        "should hold the average is the memory of the model. Begin with copies: "
        "p.detach().clone(), copy.deepcopy(model) or torch.optim.swa_utils.AveragedModel.",
        where=where,
        evidence={"cause": "self_average", "parameters": names[:20]},
    )
