"""Finds DataLoaders that always hand out the same: the first batch, one row, or one target.

- first_batch: at nearly all steps a new iteration begins, none comes to its last batch, and the
  batches of all sampled steps are the same;
- constant_target: a tensor of a batch beside the first one is the same in all rows and at all
  sampled steps, while the first one varies; not for an argument of the model (a mask may well be
  constant), and a loss or a difference reads it: a weight or a length may be constant as well.
"""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import BATCH_STORAGE, LOADER_BEGUN, LOADER_END
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.data.batches import (
    BATCH_KEYS,
    given_to_models,
    readers,
    samples_of_loaders,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_ROWS = 4
_MIN_STEPS = 4  # sampled steps
AGAIN = 0.9  # of the steps, in which an iteration begins
FINISHED = 0.1  # of the iterations, which come to their last batch

_COMPARES = re.compile(r"aten::(\w*(loss|cross_entropy|kl_div|margin)\w*|gather|scatter_?)")


def same_loaded(run: Run) -> list[Finding]:
    """Returns findings of kind `repeated_data`, at most one per cause and rank. Raises
    NotApplicable."""
    samples = samples_of_loaders(run)
    found = []
    for rank, own in samples.groupby("rank", sort=True):
        loaded = own[own["what"] == "loaded"]
        if loaded["step"].nunique() < _MIN_STEPS:
            continue
        if _first_again(run, int(str(rank)), loaded):
            found.append(_first_batch(run, int(str(rank)), loaded))
        else:
            found += _targets(run, int(str(rank)), own, loaded)
    return found


def _first_again(run: Run, rank: int, loaded: pd.DataFrame) -> bool:
    begun, ended = (logged(run, rank, name) for name in (LOADER_BEGUN, LOADER_END))
    steps = len(run.steps(rank))
    again = begun["step"].nunique() >= AGAIN * steps and len(begun) <= 2 * steps
    same = loaded[loaded["call"] == 0].groupby("position")["hash"].nunique()
    return bool(again and len(ended) <= FINISHED * len(begun) and (same == 1).all())


def _targets(run: Run, rank: int, own: pd.DataFrame, loaded: pd.DataFrame) -> list[Finding]:
    if (loaded["position"] == 0).all():
        return []
    places = logged(run, rank, prefix=f"{BATCH_STORAGE}loaded/")
    places["position"] = places["name"].astype("int64")
    places["call"] = places.groupby(["position", "step"]).cumcount()
    table = loaded.merge(places[["position", *BATCH_KEYS, "value"]], on=["position", *BATCH_KEYS])
    first = table[table["position"] == 0]
    if first.empty or first["alike"].any() or (table["rows"] < _MIN_ROWS).any():
        return []
    passed = given_to_models(own).merge(table, on=["step", "hash"])["position_y"]
    for position, one in table[table["position"] > 0].groupby("position"):
        if position in set(passed) or one["hash"].nunique() > 1 or not one["alike"].all():
            continue
        few = one.head(2 * _MIN_STEPS).to_dict("records")
        if one["step"].nunique() >= _MIN_STEPS and all(_is_compared(run, rank, row) for row in few):
            return [_constant_target(run, rank, int(str(position)), one)]
    return []


def _is_compared(run: Run, rank: int, row: dict[str, Any]) -> bool:
    """Whether a loss, or a difference of two tensors, reads a tensor of a batch."""
    for name, shapes in readers(run, rank, row):
        found = tensor_shapes(shapes)
        if _COMPARES.fullmatch(name) or (name == "aten::sub" and len(found) > 1 and all(found)):
            return True
    return False


def _first_batch(run: Run, rank: int, loaded: pd.DataFrame) -> Finding:
    begun = len(logged(run, rank, LOADER_BEGUN))
    title = (
        f"Only the first batch of the DataLoader is used: a new iteration begins in each step "
        f"({units.count(begun)} in all), and the batch is the same at all sampled steps. Iterate "
        "over the loader, or keep its iterator: next(iter(loader)) begins again each time."
    )
    return loader_finding(run, rank, title, "first_batch", loaded)


def _constant_target(run: Run, rank: int, position: int, rows: pd.DataFrame) -> Finding:
    title = (
        f"Tensor {position} of the DataLoader's batches has the same value in every row at all "
        f"sampled steps, while tensor 0 varies, and the loss reads it: the targets do not vary. "
        "Check the dataset's labels: the index, the axis of argmax, the mapping of classes."
    )
    return loader_finding(run, rank, title, "constant_target", rows)


def loader_finding(run: Run, rank: int, title: str, cause: str, rows: pd.DataFrame) -> Finding:
    """Returns a finding about what a DataLoader hands out, at the first of its samples."""
    first, steps = rows.iloc[0], int(rows["step"].nunique())
    return finding_at(
        run,
        rank,
        first,
        kind="repeated_data",
        confidence="likely",
        title=title,
        where=phase_place(run, rank, schema.PhaseKind.data.name, None),
        evidence={"cause": cause, "steps": steps},
    )
