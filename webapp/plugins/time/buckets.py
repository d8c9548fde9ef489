"""Gradients of a step and the buckets in which DistributedDataParallel reduces them.

A gradient is ready when its AccumulateGrad node, and the reducer's copy of it into its bucket, have
ended. A bucket takes gradients in that order until it holds the limit or more (`bucket_cap_mb`,
torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size), and is reduced then.
"""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

MIB = 1 << 20

_NODE = "AccumulateGrad"
_REDUCER = "torch::distributed::reducer::"
_ITEM_BYTES = re.compile(r"(\d+)(?:_|e\d|$)")


def gradients_ready(run: Run, rank: int, window: tuple[int, int]) -> tuple[Int64Array, Int64Array]:
    """Returns when each gradient of a rank is ready (ns from the start of the run, ascending), and
    its bytes; none where the sizes were not recorded."""
    columns = ["start_ns", "duration_ns", "name", "shapes", "dtypes"]
    ops = run.events("op", rank, columns=columns, window=window)
    ops = ops.filter(
        pa.array(having(ops["name"], lambda one: one == _NODE or one.startswith(_REDUCER)))
    )
    node = having(ops["name"], _NODE.__eq__)
    start, end = ops["start_ns"].to_numpy(), ends_ns(ops, run)
    order = np.argsort(start[node], kind="stable")
    begun, ready = start[node][order], end[node][order]
    copies = np.searchsorted(begun, start[~node]) - 1
    own = copies >= 0
    np.maximum.at(ready, copies[own], end[~node][own])
    tensors = zip(ops["shapes"].to_pylist(), ops["dtypes"].to_pylist(), strict=True)
    sizes = np.array([_bytes(*each) for each in tensors], np.int64)[node][order]
    return (ready, sizes) if (sizes > 0).all() else (ready[:0], sizes[:0])


def _bytes(shapes: str, dtypes: str) -> int:
    """Bytes of the first tensor: `[4, 8] [8]` and `float32 float32`; 0 where they are not known."""
    found = _ITEM_BYTES.search(dtypes.partition(" ")[0])
    if not shapes.startswith("[") or found is None:
        return 0
    lengths = shapes[1 : shapes.index("]")]
    return prod(int(one) for one in lengths.split(",") if one.strip()) * int(found[1]) // 8


def assigned(sizes: Int64Array, limit: float) -> list[list[int]]:
    """Returns positions of the gradients in each bucket, for a limit in bytes."""
    buckets: list[list[int]] = []
    filled = 0.0
    for i, size in enumerate(sizes.tolist()):
        if not buckets or filled >= limit:
            buckets.append([])
            filled = 0.0
        buckets[-1].append(i)
        filled += size
    return buckets


def reductions(calls: pd.DataFrame, ready: Int64Array, sizes: Int64Array) -> list[int]:
    """Labels of the rows of a rank's `calls` that reduce its gradients, each all that have become
    ready since the one before; empty where the bytes do not agree."""
    chosen = calls[
        calls["asynchronous"]
        & (calls["name"] == "all_reduce")
        & (calls["phase"] == schema.PhaseKind.backward.name)
    ]
    before = np.searchsorted(ready, chosen["start_ns"].to_numpy(), side="right")
    total = np.concatenate([[0], np.cumsum(sizes)])[before]
    same = np.array_equal(np.diff(total, prepend=0), chosen["bytes"].to_numpy())
    return chosen.index.tolist() if same and len(chosen) and before[-1] == len(ready) else []
