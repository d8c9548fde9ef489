"""Finds layers with NaN or infinite gradients, and the share of their steps.

A step that a gradient scaler left out counts too: what it skipped is what it found. Also counts
elements of low precision that underflow, overflow or are NaN.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.forward_ops import BACKWARD, shared_stem
from lanescope.webapp.analysis.parameter_history import gradients, layers_of
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_COLUMNS = ("layer", "share", "wrong", "steps", "skipped", "first", "last", "parameters")
_TENSORS = ["start_ns", "numel", "nan", "inf"]
_OPS = ["start_ns", "duration_ns", "name", "scope", "module", "sequence"]

_LOW_COLUMNS = ("layer", "dtype", "phase", "elements", "underflow", "overflow", "nan")
_LOW_TENSORS = ["start_ns", "depth", "position", "dtype", "numel", "zeros", "inf", "nan"]


def not_finite_layers(run: Run) -> pd.DataFrame:
    """Returns one row per layer that had a NaN or infinite gradient, in the order of the model.

    layer (module), share (wrong / steps), wrong (steps at which a gradient of the layer was NaN or
    infinite on a rank), steps (at which it had gradients), skipped (of the wrong ones, steps that a
    scaler left out), first and last (wrong step), parameters (that were ever wrong). On a rank that
    holds shards of parameters its shards count.
    """
    taken = gradients(run)
    taken = taken[~taken["missing"]]
    left_out = to_frame(run.events("parameter", columns=["step", "parameter", "skipped"]))
    left_out = left_out[left_out["skipped"].astype(bool)]
    rows = pd.concat(
        [
            taken[["step", "parameter"]].assign(wrong=~np.isfinite(taken["norm"]), skipped=False),
            left_out[["step", "parameter"]].assign(wrong=True, skipped=True),
        ]
    )
    rows["layer"] = layers_of(rows["parameter"])
    wrong = rows[rows["wrong"]]
    by_layer = wrong.groupby("layer", sort=False)
    scaler = wrong[wrong["skipped"]].groupby("layer")["step"].nunique()
    # Of a skipped step only wrong parameters have rows, but no layer was without gradients then.
    skips, own = set(left_out["step"]), rows[rows["layer"].isin(wrong["layer"].unique())]
    own = own.groupby("layer", sort=False)["step"].agg(set)
    table = pd.DataFrame({"wrong": by_layer["step"].nunique()})
    table["steps"] = [len(own[layer] | skips) for layer in table.index]
    table["share"] = table["wrong"] / table["steps"]
    table["skipped"] = scaler.reindex(table.index).fillna(0).astype("int64")
    table["first"], table["last"] = by_layer["step"].min(), by_layer["step"].max()
    table["parameters"] = by_layer["parameter"].nunique()
    order = [layer for layer in rows["layer"].unique() if layer in table.index]
    return table.reindex(order).rename_axis("layer").reset_index()[list(_COLUMNS)]


def not_finite_elements(run: Run) -> pd.Series:
    """Returns layer -> share of NaN and infinite elements among those that its backward computed.

    Counts what operators returned or changed within the layer's autograd nodes. Forward operators
    of its module made these nodes: same sequence number, name and thread. Only layers with recorded
    tensor values (level numerics) are in it.
    """
    if not run.counts["tensor"]:
        return pd.Series(dtype="float64")
    sums = [_computed(run, one.rank, one.thread) for one in run.threads if one.kind != "stream"]
    total = pd.concat(sums).groupby("layer", sort=False)[["wrong", "numel"]].sum()
    return (total["wrong"] / total["numel"]).rename("elements")


def _computed(run: Run, rank: int, thread: str) -> pd.DataFrame:
    tensors = to_frame(run.events("tensor", rank, thread, columns=_TENSORS))
    layer = backward_layers(run, rank, thread, tensors["start_ns"].to_numpy())
    wrong = tensors["nan"] + tensors["inf"]
    table = pd.DataFrame({"layer": layer, "wrong": wrong, "numel": tensors["numel"]})
    return table[table["layer"].notna()]


def backward_layers(run: Run, rank: int, thread: str, starts: Int64Array) -> NDArray[np.object_]:
    """Returns for instants of a thread the layer whose backward runs then; None where none does.

    That is the module of the forward operator that made the autograd node (by sequence number and
    name, on the same thread).
    """
    ops = to_frame(run.events("op", rank, thread, columns=_OPS))
    ops = ops[ops["sequence"].notna()]
    stems = {name: shared_stem(str(name)) for name in ops["name"].unique()}
    ops["stem"] = ops["name"].map(stems).astype("str")
    backward = ops["scope"] == BACKWARD
    forward = ops[~backward].drop_duplicates(["sequence", "stem"], keep="last")
    forward = forward.rename(columns={"module": "layer"})[["sequence", "stem", "layer"]]
    nodes = ops[backward].merge(forward, on=["sequence", "stem"]).sort_values("start_ns")
    found = np.full(len(starts), None, np.object_)
    if nodes.empty:
        return found
    place = np.searchsorted(nodes["start_ns"].to_numpy(), starts, side="right") - 1
    ends = (nodes["start_ns"] + nodes["duration_ns"].fillna(run.duration_ns)).to_numpy()
    inside = (place >= 0) & (starts < ends[place.clip(min=0)])
    found[inside] = nodes["layer"].to_numpy(object)[place[inside]]
    return found


def low_precision(run: Run) -> pd.DataFrame:
    """Returns one row per layer, dtype and phase ("forward", "backward"), in the order of their
    first op.

    Counts elements that operators made in float16, bfloat16 or 8 bits: 0 is what a number too small
    becomes (and what a ReLU or a mask makes on purpose), infinite one too large.

    elements (that operators of the layer made in the whole run, all ranks), underflow, overflow and
    nan (shares of these that are 0, infinite and NaN). Only tensors of few bits that were looked at
    (level numerics) count: a run without has no rows.
    """
    if not run.counts["tensor"]:
        return pd.DataFrame(columns=list(_LOW_COLUMNS))
    every = pd.concat([_low_of_thread(run, t.rank, t.thread) for t in run.threads])
    total = every.groupby(["layer", "dtype", "phase"], sort=False)[
        ["numel", "zeros", "inf", "nan"]
    ].sum()
    table = total.rename(columns={"numel": "elements", "zeros": "underflow", "inf": "overflow"})
    for name in ("underflow", "overflow", "nan"):
        table[name] = table[name] / table["elements"]
    return table.reset_index()[list(_LOW_COLUMNS)]


def _low_of_thread(run: Run, rank: int, thread: str) -> pd.DataFrame:
    tensors = to_frame(run.events("tensor", rank, thread, columns=_LOW_TENSORS))
    few = tensors["dtype"].astype("str").str.contains("float16|float8")  # and bfloat16
    made = ~tensors["position"].astype("str").str.startswith("read")
    tensors = tensors[few & made & (tensors["numel"] > 0)]
    columns = ["start_ns", "depth", "module", "phase"]
    ops = to_frame(run.events("op", rank, thread, columns=columns))
    ops = ops[ops["start_ns"].isin(tensors["start_ns"])]
    rows = tensors.merge(ops, on=["start_ns", "depth"], how="left")
    backward = backward_layers(run, rank, thread, rows["start_ns"].to_numpy(np.int64))
    known = pd.notna(backward)
    rows["layer"] = np.where(known, backward, rows["module"].astype("object"))
    kinds = run.events("phase", rank, columns=["kind", "name"]).to_pandas()
    later = set(kinds.loc[kinds["kind"] == "backward", "name"])
    rows["phase"] = np.where(known | rows["phase"].isin(later), "backward", "forward")
    return rows[["layer", "dtype", "phase", "numel", "zeros", "inf", "nan"]].astype(
        {"layer": "object", "dtype": "object"}
    )
