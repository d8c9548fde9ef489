"""Counts elements of low precision that underflow, overflow or are NaN, by layer.

Of the elements that operators made in float16, bfloat16 or 8 bits: 0 is what a number too small
becomes (and what a ReLU or a mask makes on purpose), infinite one too large.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.plugins.gradients.not_finite import backward_layers
from lanescope.webapp.runs.run import Run

COLUMNS = ("layer", "dtype", "phase", "elements", "underflow", "overflow", "nan")
_TENSORS = ["start_ns", "depth", "position", "dtype", "numel", "zeros", "inf", "nan"]


def low_precision(run: Run) -> pd.DataFrame:
    """One row per layer, dtype and phase ("forward", "backward"), in the order of their first op.

    elements (that operators of the layer made in the whole run, all ranks), underflow, overflow and
    nan (shares of these that are 0, infinite and NaN). Only tensors of few bits that were looked at
    (level numerics) count: a run without has no rows.
    """
    if not run.counts["tensor"]:
        return pd.DataFrame(columns=list(COLUMNS))
    every = pd.concat([_of_thread(run, t.rank, t.thread) for t in run.threads])
    total = every.groupby(["layer", "dtype", "phase"], sort=False)[
        ["numel", "zeros", "inf", "nan"]
    ].sum()
    table = total.rename(columns={"numel": "elements", "zeros": "underflow", "inf": "overflow"})
    for name in ("underflow", "overflow", "nan"):
        table[name] = table[name] / table["elements"]
    return table.reset_index()[list(COLUMNS)]


def _of_thread(run: Run, rank: int, thread: str) -> pd.DataFrame:
    tensors = to_frame(run.events("tensor", rank, thread, columns=_TENSORS))
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
