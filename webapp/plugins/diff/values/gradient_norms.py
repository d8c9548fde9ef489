"""Gradient norms of two runs side by side, by rank, step and parameter."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import plain_keys
from lanescope.webapp.analysis.parameter_history import gradients
from lanescope.webapp.plugins.diff.values.closeness import COARSEST, RELATIVE, SIMPLE, Mode
from lanescope.webapp.plugins.diff.values.first_layer import FirstLayer, first_gradient
from lanescope.webapp.plugins.diff.values.noise import Floor
from lanescope.webapp.plugins.diff.values.precision import least_tolerance
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_number
from lanescope.webapp.runs.types import BoolArray, Float64Array


def compared_norms(base: Run, run: Run, mode: Mode, floor: Floor | None = None) -> pd.DataFrame:
    """Returns norms of both runs, by step, rank and order of recording.

    kind ("gradient"), rank, thread (its name), step, name (parameter), base and run (norms, NaN on
    a side that has none), difference, state in `mode` (see `compare`), thread_id, and of each side
    the dtype and whether the gradient was missing. `floor` allows more than a dtype does.
    """
    keys = ["rank", "step", "parameter", "optimizer", "again"]
    sides = []
    for one in (base, run):
        frame = gradients(one)
        names = {(t.rank, t.thread): t.name for t in one.threads}
        frame["thread_name"] = [
            names.get(place, "") for place in zip(frame["rank"], frame["thread"], strict=True)
        ]
        frame = plain_keys(frame, "parameter")
        # Optimizers are numbered as they are made: one that is made again has another number.
        made = frame.groupby(keys[:3])["optimizer"]
        frame["optimizer"] = made.rank(method="dense").astype("int64")
        # A parameter may pass an optimizer twice within a step (an explicit step boundary).
        frame["again"] = frame.groupby(keys[:-1]).cumcount()
        frame["order"] = np.arange(len(frame))
        sides.append(frame)
    both = sides[0].merge(sides[1], on=keys, how="outer", suffixes=("_base", "_run"))
    both["order"] = both["order_run"].fillna(both["order_base"])
    both = both.sort_values(["step", "rank", "order"], kind="stable", ignore_index=True)
    here, there = both["order_run"].notna(), both["order_base"].notna()
    low = both["norm_base"].to_numpy(np.float64)
    high = both["norm_run"].to_numpy(np.float64)
    gone = both[["missing_base", "missing_run"]].fillna(False).to_numpy(bool)
    state = _states(low, high, gone, _tolerances(both, floor, least_tolerance(base, run)), mode)
    state[~here.to_numpy()] = "only_in_base"
    state[~there.to_numpy()] = "only_in_run"
    with np.errstate(invalid="ignore"):
        apart = high - low  # of two infinities: not a number
    thread = both["thread_name_run"].where(here, both["thread_name_base"])
    return pd.DataFrame(
        {
            "kind": "gradient",
            "rank": both["rank"],
            "thread": thread,
            "step": both["step"],
            "name": both["parameter"],
            "base": low,
            "run": high,
            "difference": apart,
            "state": state,
            "thread_id": both["thread_run"],
            "dtype_base": both["dtype_base"],
            "dtype_run": both["dtype_run"],
            "missing_base": gone[:, 0],
            "missing_run": gone[:, 1],
        }
    )


def _tolerances(both: pd.DataFrame, floor: Floor | None, least: float) -> Float64Array:
    sides = [both[name].map(RELATIVE).fillna(COARSEST) for name in ("dtype_base", "dtype_run")]
    low, high = (side.to_numpy(np.float64) for side in sides)
    coarser: Float64Array = np.maximum(low, high).clip(min=least)
    if floor is None:
        return coarser
    codes, dtypes = pd.factorize(both["dtype_base"].fillna(""))
    step = both["step"].to_numpy(np.int64)
    return np.maximum(coarser, floor.at([str(dtype) for dtype in dtypes], codes, step))


def _states(
    base: Float64Array,
    run: Float64Array,
    gone: BoolArray,
    relative: Float64Array,
    mode: Mode,
) -> npt.NDArray[np.object_]:
    """State of each pair of norms; `gone` says, per side, that there was no gradient."""
    neither, both = gone.all(axis=1), ~gone.any(axis=1)
    same = neither | (both & (base.view(np.int64) == run.view(np.int64)))
    with np.errstate(invalid="ignore"):
        apart = np.abs(run - base)
        if mode == "tolerance":
            close = apart <= relative * np.maximum(np.abs(base), np.abs(run))
        elif mode == "simple":
            close = apart <= SIMPLE
        else:
            close = np.zeros(len(base), np.bool_)
    if mode != "bitwise":
        # Infinity times a tolerance is infinity: it must not be close to every number.
        close = close & np.isfinite(base) & np.isfinite(run)
        close |= (np.isnan(base) & np.isnan(run)) | (base == run)
    state = np.full(len(base), "different", np.object_)
    state[close & both] = "within_tolerance"
    state[same] = "identical"
    return state


def norm_floor(base: Run, noise: Run) -> Floor:
    """Returns how far the norms of two recordings of the baseline are apart, by dtype and step."""
    rows = compared_norms(base, noise, "bitwise")
    rows = rows[~rows["state"].isin(["only_in_base", "only_in_run"])]
    low, high = rows["base"].to_numpy(np.float64), rows["run"].to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(high - low) / np.maximum(np.abs(low), np.abs(high))
    return Floor.of(rows["dtype_base"].to_numpy(object), rows["step"].to_numpy(np.int64), apart)


def first_norm(differing: pd.DataFrame, layer: FirstLayer | None) -> dict[str, Any] | None:
    """Returns the first of these norms as `diff --json` prints it; None where there are none."""
    if differing.empty:
        return None
    row = first_gradient(differing, layer).iloc[0]
    parameter = str(row["name"])
    sides = {
        side: {
            "norm": None if row[f"missing_{side}"] else json_number(float(row[side])),
            "dtype": str(row[f"dtype_{side}"]),
        }
        for side in ("base", "run")
    }
    return {
        "rank": int(row["rank"]),
        "thread": str(row["thread_id"]),
        "step": int(row["step"]),
        "phase": "backward",
        "op": "gradient",
        "parameter": parameter,
        "module": parameter.rpartition(".")[0],
        "where": None,
        **sides,
        "origin": None,
    }
