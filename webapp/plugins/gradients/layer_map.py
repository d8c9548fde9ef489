"""Gradients by layer and step: the table behind the heat map, its curves and its picture by depth.

A layer is a module with parameters of its own, or, at a given depth of the module tree, all that is
below one module. Norms of its parameters add up as squares.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.parameter_history import gradient_rows, samples
from lanescope.webapp.runs.run import Run

DECAY = 0.7
"""From one layer to the one before it; where norms fall faster, the first layers learn nothing."""

LAYER_MEASURES = {
    "gradient": ("norm of the gradient", "gradient norm"),
    "relative": ("gradient per element, relative to the model's", "relative gradient"),
    "update": ("norm of the update, relative to the parameters'", "update ratio"),
    "parameters": ("norm of the parameters", "parameter norm"),
    "alive": ("share of the gradient that is not zero", "share not zero"),
    "baseline": ("norm of the gradient, relative to the baseline's", "ratio to the baseline"),
}
"""What can be shown of a layer at a step, in words and beside an axis."""

SAMPLED = ("update", "parameters", "alive")
"""Measures that are of the table of parameters, at sampled steps."""

_NO_RANK = -1

QUANTILES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "greatest": 1.0}
"""Over the steps, as the picture by depth draws them."""


@lru_cache(maxsize=16)
def layer_map(
    run: Run, rank: int, measure: str, depth: int | None = None, baseline: Run | None = None
) -> pd.DataFrame:
    """Returns a measure per layer (rows, in forward order) and step (columns). NaN: the layer had
    none then, which a layer may have at no step; infinite: a norm in it is NaN or infinite.

    Several steps of an optimizer within one training step count by the last. Update, parameters and
    zeros are known at sampled steps only. `depth` cuts paths of modules after so many names.
    """
    table = in_any_order(run, rank, measure, depth, baseline)
    return table.reindex(as_in_model(run, rank, list(table.index)))


def in_any_order(
    run: Run, rank: int, measure: str, depth: int | None = None, baseline: Run | None = None
) -> pd.DataFrame:
    """Returns `layer_map` without the order of its rows: that reads the operators of the rank."""
    by_rank = _rows_of(run, measure in SAMPLED)
    rows = by_rank.get(rank, by_rank[_NO_RANK])
    if measure in SAMPLED:
        rows = rows[rows["optimizer"] >= 0]
        needed = "grad_zeros" if measure == "alive" else "norm"
        rows = rows.assign(missing=rows[needed].isna())
    return _measured(rows, measure, depth, baseline, rank)


@lru_cache(maxsize=4)
def _rows_of(run: Run, sampled: bool) -> dict[int, pd.DataFrame]:
    """Rank -> its rows of `samples`, or of `gradient_rows`; _NO_RANK -> an empty table."""
    rows = samples(run) if sampled else gradient_rows(run)
    by_rank = {int(rank): own for rank, own in rows.groupby("rank", sort=False)}
    return {_NO_RANK: rows.iloc[:0], **by_rank}


def as_in_model(run: Run, rank: int, layers: list[str]) -> list[str]:
    """Returns layers in the order of the first forward, the first layer first.

    Where a layer ran no operator there, in the order in which the model has its modules: an
    optimizer's groups (of what decays, and what does not) have an order of their own. A layer that
    is not a module of the model stays behind the one that it followed.
    """
    paths = run.events("module", rank, columns=["path"])["path"].to_pylist()
    return _ordered(_ordered(layers, paths), _called(run, rank))


def _ordered(layers: list[str], paths: list[str]) -> list[str]:
    known = {path: i for i, path in reversed(list(enumerate(paths)))}
    keys = list(accumulate(layers, lambda last, layer: known.get(layer, last), initial=-1))[1:]
    return [layer for _, layer in sorted(zip(keys, layers, strict=True), key=lambda one: one[0])]


@lru_cache(maxsize=8)
def _called(run: Run, rank: int) -> list[str]:
    """Modules, and those around them, in the order of their first forward operators."""
    rows = gradient_rows(run)
    until = rows.loc[rows["rank"] == rank, "time_ns"].min()
    window = None if pd.isna(until) else (0, int(until) + 1)
    ops = run.events("op", rank, columns=["start_ns", "phase", "module"], window=window)
    ops = ops.filter(pc.equal(ops["phase"].cast(pa.string()), "forward")).sort_by("start_ns")
    found: dict[str, None] = {}
    for path in pc.unique(ops["module"].cast(pa.string())).to_pylist():
        names = path.split(".") if path else []
        found |= dict.fromkeys(".".join(names[: n + 1]) for n in range(len(names)))
    return list(found)


def depths(run: Run) -> int:
    """Returns how many names the longest path of a layer has."""
    return max((str(one).count(".") + 1 for one in gradient_rows(run)["layer"].unique()), default=1)


def path_at_depth(layer: str, depth: int | None) -> str:
    """Returns the path of a layer's module, or of the one above it at that depth."""
    return layer if depth is None else ".".join(layer.split(".")[:depth])


def quantiles(table: pd.DataFrame) -> dict[str, pd.Series]:
    """Returns name of QUANTILES -> layer -> value over all steps at which it has one."""
    known = table.replace(np.inf, np.nan)
    return {name: known.quantile(share, axis=1) for name, share in QUANTILES.items()}


def _measured(
    rows: pd.DataFrame, measure: str, depth: int | None, baseline: Run | None, rank: int
) -> pd.DataFrame:
    rows = rows[rows["numel"] > 0]
    groups = {layer: path_at_depth(str(layer), depth) for layer in rows["layer"].unique()}
    there = rows[~rows["missing"]].drop_duplicates(["step", "parameter"], keep="last")
    there = there.assign(group=there["layer"].map(groups))
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
    order = list(dict.fromkeys(groups.values()))
    table = values.unstack("step").reindex(order).sort_index(axis=1)
    if measure == "baseline":
        if baseline is None:
            return table.iloc[:0]
        base = layer_map(baseline, rank, "gradient", depth)
        return table / base.reindex(index=table.index, columns=table.columns).replace(
            [0, np.inf], np.nan
        )
    return table
