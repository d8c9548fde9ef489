"""Gradients by layer and step: the table behind the heat map, its curves and its depth profile.

A layer is a module with parameters of its own, or, at a given depth of the module tree, all that is
below one module. Norms of its parameters add up as squares.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.parameter_history import gradient_rows, samples
from lanescope.webapp.runs.run import Run

HEALTHY = (1e-3, 1e1)
"""Norms of a layer's gradient that are usual, as the heat map and the depth profile mark them."""
DECAY = 0.7
"""From one layer to the one before it; where norms fall faster, the first layers learn nothing."""

MEASURES = {
    "gradient": "norm of the gradient",
    "relative": "gradient per element, in parts of the model's",
    "update": "norm of the update, in parts of the parameters'",
    "parameters": "norm of the parameters",
    "alive": "share of the gradient that is not zero",
    "baseline": "norm of the gradient, in parts of the baseline's",
}
"""What can be shown of a layer at a step, and what to call it."""

AXES = {
    "gradient": "gradient norm",
    "relative": "relative gradient",
    "update": "update ratio",
    "parameters": "parameter norm",
    "alive": "share not zero",
    "baseline": "ratio to the baseline",
}
"""The same beside an axis."""

SAMPLED = ("update", "parameters", "alive")
"""Measures that are of the table of parameters, at sampled steps."""


@lru_cache(maxsize=16)
def layer_map(
    run: Run, rank: int, measure: str, depth: int | None = None, baseline: Run | None = None
) -> pd.DataFrame:
    """A measure per layer (rows, in the order of the model) and step (columns). NaN: none;
    infinite: a norm in it is NaN or infinite.

    Several steps of an optimizer within one training step count by the last. Update, parameters and
    zeros are known at sampled steps only. `depth` cuts paths of modules after so many names.
    """
    if measure in SAMPLED:
        rows = samples(run)
        rows = rows[(rows["rank"] == rank) & (rows["optimizer"] >= 0)]
        needed = "grad_zeros" if measure == "alive" else "norm"
        rows = rows.assign(missing=rows[needed].isna())
    else:
        rows = gradient_rows(run)
        rows = rows[rows["rank"] == rank]
    table = _measured(rows, measure, depth, baseline, rank)
    return table.reindex(as_in_model(run, rank, list(table.index)))


def as_in_model(run: Run, rank: int, layers: list[str]) -> list[str]:
    """Layers in the order in which the model has its modules.

    An optimizer's groups (of what decays, and what does not) have an order of their own. A layer
    that is not a module of the model stays behind the one that it followed.
    """
    paths = run.events("module", rank, columns=["path"])["path"].to_pylist()
    known = {path: i for i, path in reversed(list(enumerate(paths)))}
    keys = list(accumulate(layers, lambda last, layer: known.get(layer, last), initial=-1))[1:]
    return [layer for _, layer in sorted(zip(keys, layers, strict=True), key=lambda one: one[0])]


def depths(run: Run) -> int:
    """How many names the longest path of a layer has."""
    layers = gradient_rows(run)["layer"].unique()
    return max((str(layer).count(".") + 1 for layer in layers), default=1)


def cut(layer: str, depth: int | None) -> str:
    """The path of a layer's module, or of the one above it at that depth."""
    return layer if depth is None else ".".join(layer.split(".")[:depth])


def profile(table: pd.DataFrame, step: int) -> pd.Series:
    """Layer -> value at a step of `layer_map`, from the first layer to the last."""
    return table[step] if step in table.columns else pd.Series(dtype="float64")


def _measured(
    rows: pd.DataFrame, measure: str, depth: int | None, baseline: Run | None, rank: int
) -> pd.DataFrame:
    there = rows[~rows["missing"] & (rows["numel"] > 0)]
    there = there.drop_duplicates(["step", "parameter"], keep="last")
    there = there.assign(group=[cut(str(layer), depth) for layer in there["layer"]])
    # NaN would be skipped by a sum: a layer of nothing but NaN would be one of zeros.
    columns = {"square": there["norm"].fillna(np.inf) ** 2, "numel": there["numel"]}
    if measure == "update":
        columns["change"] = (there["norm"] * there["update_ratio"]) ** 2
    elif measure == "alive":
        columns["alive"] = (1 - there["grad_zeros"]) * there["numel"]
    sums = there.assign(**columns).groupby(["group", "step"], sort=False)[list(columns)].sum()
    if measure == "relative":
        whole = sums.groupby(level="step").sum()
        mean = np.sqrt(sums["square"] / sums["numel"])
        model = np.sqrt(whole["square"] / whole["numel"]).replace([0, np.inf], np.nan)
        values = (mean / model).where(np.isfinite(mean), mean)
    elif measure == "update":
        values = np.sqrt(sums["change"] / sums["square"].replace([0, np.inf], np.nan))
    elif measure == "alive":
        values = sums["alive"] / sums["numel"]
    else:
        values = np.sqrt(sums["square"])
    order = list(dict.fromkeys(there["group"]))
    table = values.unstack("step").reindex(order).sort_index(axis=1)
    if measure == "baseline":
        if baseline is None:
            return table.iloc[:0]
        base = layer_map(baseline, rank, "gradient", depth)
        return table / base.reindex(index=table.index, columns=table.columns).replace(
            [0, np.inf], np.nan
        )
    return table
