"""Finds models that change the data they get in place, as `x -= mean` does with a slice of it.

The program slices its data, and forward normalises a slice: in the next epoch it normalises the
result once more. Found where an operator of a model's forward computes in place on parts of one
tensor, one part in a step, comes back to each in later epochs, and a layer reads what it left,
while nothing else writes to the tensor. States that a model keeps have names, or change as a whole
in each step.
"""

from __future__ import annotations

import re

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_named, to_frame
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.tensor_reads import OPERATOR_KEY
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_CHANGES = re.compile(r"aten::(add|sub|mul|div|pow|sqrt|log|clamp|clamp_min|clamp_max)_")
_LAYERS = re.compile(r"aten::(addmm|mm|bmm|baddbmm|\w*convolution\w*|thnn_conv2d|_slow_conv\w*)")
_MIN_PARTS, _MIN_EPOCHS = 4, 3
_FORWARD = schema.PhaseKind.forward.name
_PART = ["storage", "offset", "bytes"]


@found_per_rank(need_accesses)
def changed_inputs(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `inplace_modification`, at most one per rank. Raises
    NotApplicable."""
    named = run.events("storage", rank, columns=["storage"])["storage"].unique()
    for thread in run.threads_of(rank):
        found = _changes(run, rank, thread.thread)
        for _, own in found[~found["storage"].isin(named)].groupby(["storage", "stack"]):
            if _comes_back(own) and _is_all(run, rank, thread.thread, own):
                return _finding(run, rank, own)
    return None


def _changes(run: Run, rank: int, thread: str) -> pd.DataFrame:
    """What operators of forward change in place and layers read in the same step: a row for each
    change."""
    columns = [*OPERATOR_KEY, "name", "step", "module", "phase", "stack"]

    def is_looked_at(name: str) -> bool:
        return bool(_CHANGES.fullmatch(name) or _LAYERS.fullmatch(name))

    ops = ops_named(run, rank, thread, columns, is_looked_at)
    ops = ops[(ops["phase"] == _FORWARD) & (ops["module"] != "") & ops["stack"].notna()]
    changes = ops["name"].str.fullmatch(_CHANGES.pattern)
    if not changes.any():
        return pd.DataFrame(columns=[*columns, *_PART])
    rows = to_frame(run.events("access", rank, thread, [*OPERATOR_KEY, *_PART, "write", "birth"]))
    touched = rows.merge(ops.assign(changes=changes, thread=thread), on=OPERATOR_KEY)
    touched = touched[~touched["birth"]]
    read = touched.loc[~touched["write"] & ~touched["changes"], [*_PART, "step"]]
    changed = touched[touched["write"] & touched["changes"]].drop_duplicates(
        [*_PART, "step", "stack"]
    )
    return changed.merge(read.drop_duplicates(), on=[*_PART, "step"])


def _comes_back(own: pd.DataFrame) -> bool:
    """Whether changes of one line are of many parts, one in a step, and several times of each."""
    parts = own.groupby(["offset", "bytes"]).size()
    alone = own.groupby("step").size().max() == 1
    return bool(alone and (parts >= _MIN_EPOCHS).sum() >= _MIN_PARTS)


def _is_all(run: Run, rank: int, thread: str, own: pd.DataFrame) -> bool:
    """Whether nothing but operators of forward writes to the tensor meanwhile."""
    window = int(own["start_ns"].min()), int(own["start_ns"].max()) + 1
    storage = own["storage"].iloc[0]
    rows = to_frame(
        run.events(
            "access",
            rank,
            columns=["thread", *OPERATOR_KEY, "storage", "write", "birth"],
            window=window,
        )
    )
    rows = rows[(rows["storage"] == storage) & (rows["write"] | rows["birth"])]
    names = ops_named(run, rank, thread, [*OPERATOR_KEY, "name", "phase"], _CHANGES.fullmatch)
    inside = rows.merge(names[names["phase"] == _FORWARD], on=OPERATOR_KEY)
    return len(inside) == len(rows) and not inside["birth"].any()


def _finding(run: Run, rank: int, own: pd.DataFrame) -> Finding:
    first = own.sort_values("start_ns").iloc[0]
    parts = own.groupby(["offset", "bytes"]).size()
    where = own_place(run, rank, int(first["stack"]))
    return finding_at(
        run,
        rank,
        first,
        kind="inplace_modification",
        confidence="likely",
        title=f"{first['name']}{at_place(where)} changes the data itself: what "
        f"{first['module']} gets are slices of one tensor, and each of "
        f"{units.count(len(parts))} is changed once more in each of {units.count(int(parts.max()))}"
        " epochs, so the data is another one from epoch to epoch. Compute a new tensor "
        "(x = x - mean, not x -= mean).",
        where=where,
        evidence={"cause": "changed_input", "module": str(first["module"])},
    )
