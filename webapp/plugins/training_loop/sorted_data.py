"""Finds batches of one class: a sorted dataset whose DataLoader does not shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lanescope.collector.format.names import BATCH_STORAGE, IN_ORDER
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.data.batches import (
    BATCH_KEYS,
    given_to_models,
    readers,
    samples_of_loaders,
)
from lanescope.webapp.plugins.data.constant_batches import loader_finding
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 5  # sampled steps
_MIN_ROWS = 8  # of a batch
_MIN_SHARE = 0.6  # of the batches, which have one class: others hold the end of one
CLASSIFIES = ("nll_loss", "cross_entropy", "binary_cross_entropy")
"""Parts of the names of losses."""


@found_in_rows(samples_of_loaders)
def sorted_targets(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `repeated_data`, one per rank. Raises NotApplicable."""
    in_order = logged(run, rank, IN_ORDER)["value"]
    loaded = rows[(rows["what"] == "loaded") & (rows["call"] == 0)]
    if in_order.empty or not in_order.all() or loaded["step"].nunique() < _MIN_STEPS:
        return None
    first = loaded[loaded["position"] == 0]
    if first["alike"].any() or first["rows"].min() < _MIN_ROWS:
        return None
    passed = set(given_to_models(rows)["hash"])
    for _, one in loaded[loaded["position"] > 0].groupby("position"):
        if passed.isdisjoint(one["hash"]) and _of_one_class(run, rank, one):
            return _finding(run, rank, one)
    return None


def _of_one_class(run: Run, rank: int, one: pd.DataFrame) -> bool:
    """Whether nearly all batches have one class each, not all the same, and a loss reads it."""
    alike = one[one["alike"]]
    if alike["step"].nunique() < _MIN_STEPS or len(alike) < _MIN_SHARE * len(one):
        return False
    if alike["hash"].nunique() < 2:
        return False
    position = int(one["position"].iloc[0])
    places = logged(run, rank, prefix=f"{BATCH_STORAGE}loaded/{position}")
    places["call"] = places.groupby("step").cumcount()
    table = alike.merge(places[[*BATCH_KEYS, "value"]], on=BATCH_KEYS)
    few = table.head(_MIN_STEPS).to_dict("records")
    return len(few) == _MIN_STEPS and all(read_by_a_loss(run, rank, row, CLASSIFIES) for row in few)


def read_by_a_loss(run: Run, rank: int, row: dict[Any, Any], names: Sequence[str]) -> bool:
    """Returns whether a loss of the same step reads a tensor of a batch: step, time_ns, thread, and
    its storage as `value`; of losses with one of these names in theirs."""
    found = readers(run, rank, row)
    return any(one in name for name, _ in found for one in names)


def _finding(run: Run, rank: int, rows: pd.DataFrame) -> Finding:
    title = (
        f"The batches of the DataLoader have one class each, at "
        f"{units.count(rows['step'].nunique())} sampled steps: the dataset is sorted, and is read "
        f"in its order (tensor {int(rows['position'].iloc[0])} of the batch is the target). Pass "
        "shuffle=True to the DataLoader of the training."
    )
    return loader_finding(run, rank, title, "sorted_targets", rows)
