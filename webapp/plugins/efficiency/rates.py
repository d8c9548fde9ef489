"""Operators with their FLOPs, bytes and rates, and the FLOPs of steps."""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.plugins.efficiency.flops import (
    FORMULAS,
    OperatorCall,
    Work,
    arguments_of,
    shapes_of,
    work_of,
)
from lanescope.webapp.plugins.time.streams import kernel_time
from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Float64Array

_COLUMNS = [
    "rank",
    "name",
    "shapes",
    "dtypes",
    "device",
    "calls",
    "flops",
    "bytes",
    "total_flops",
    "time_ns",
    "flops_per_s",
    "bytes_per_s",
]

OPERATOR_KEYS = ["name", "shapes", "dtypes", "device"]
MODULE_COLUMN = "module"
_ITEM_BITS = re.compile(r"(\d+)(?:_|e\d|$)")
_DEPTHS = 256  # of operators within each other
_NEEDS_OUTPUTS = "convolution"


def efficiency(run: Run) -> pd.DataFrame:
    """Returns one row per rank, operator, shapes, dtypes and device, by time: COLUMNS.

    The operators are those of `flops.FORMULAS`; one within another counts with that. flops and
    bytes are of one call: bytes of its inputs and outputs, each once; NaN where shapes were not
    recorded. time_ns is the sum over the calls: of the kernels that the call launched, or, on a
    host, of the call. flops_per_s and bytes_per_s are the totals over that time.
    """
    every = measured_operators(run)
    if every.empty:
        return pd.DataFrame(columns=_COLUMNS)
    grouped = every.groupby(["rank", *OPERATOR_KEYS], sort=True)
    sums = grouped[["calls", "total_flops", "total_bytes", "time_ns"]].sum()
    table = pd.concat([sums, grouped[["flops", "bytes"]].first()], axis=1).reset_index()
    seconds = table["time_ns"].where(table["time_ns"] > 0) * 1e-9
    known = table["flops"].notna()
    table["flops_per_s"] = (table["total_flops"] / seconds).where(known)
    table["bytes_per_s"] = (table["total_bytes"] / seconds).where(known)
    table["total_flops"] = table["total_flops"].where(known)
    return table[_COLUMNS].sort_values("time_ns", ascending=False, kind="stable", ignore_index=True)


def measured_operators(run: Run) -> pd.DataFrame:
    """Returns the operators of all ranks and threads with a formula: rank and the columns of
    `_of_thread`, a row per KEYS, PLACE and thread."""
    tables = [table.assign(rank=rank) for rank in run.ranks for table, _ in _measured(run, rank)]
    if not tables:
        sums = ["calls", "flops", "bytes", "total_flops", "total_bytes", "time_ns"]
        return pd.DataFrame(columns=["rank", *OPERATOR_KEYS, MODULE_COLUMN, *sums])
    return pd.concat(tables, ignore_index=True)


def step_flops(run: Run) -> pd.DataFrame:
    """Returns one row per rank and step: rank, step, flops, duration_ns, flops_per_s.

    flops is the sum over the rank's operators that begin in the step, as in `efficiency`;
    flops_per_s is divided by the whole step, waits included.
    """
    tables = []
    for rank in run.ranks:
        steps = run.steps(rank)
        flops = sum((found for _, found in _measured(run, rank)), np.zeros(len(steps)))
        length = steps.end_ns - steps.start_ns
        table = pd.DataFrame(
            {"rank": rank, "step": steps.index, "flops": flops, "duration_ns": length}
        )
        tables.append(table.assign(flops_per_s=flops / np.maximum(length, 1) * 1e9))
    return pd.concat(tables, ignore_index=True)


@lru_cache(maxsize=64)
def _measured(run: Run, rank: int) -> list[tuple[pd.DataFrame, Float64Array]]:
    """Of each thread with such operators, what `_of_thread` returns."""
    threads = [one.thread for one in run.threads_of(rank)]
    found = (_of_thread(run, rank, thread) for thread in threads)
    return [one for one in found if one is not None]


def _of_thread(run: Run, rank: int, thread: str) -> tuple[pd.DataFrame, Float64Array] | None:
    """Returns one row per KEYS and PLACE of the operators of a thread that have a formula, and the
    FLOPs of those that begin in each step of the rank; None without such operators.

    Columns calls, flops and bytes (of the first call), total_flops, total_bytes, time_ns.
    """
    columns = ["start_ns", "duration_ns", "depth", *OPERATOR_KEYS, MODULE_COLUMN, "args"]
    ops = run.events("op", rank, thread, columns)
    ops = ops.append_column("end_ns", [ends_ns(ops, run)])
    ops = ops.filter(pa.array(having(ops["name"], FORMULAS.__contains__)))
    ops = ops.filter(pa.array(_outermost(ops)))
    if not len(ops):
        return None
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    texts = {
        key: ops[key].cast(pa.string()).fill_null("").to_pylist()
        for key in [*OPERATOR_KEYS, MODULE_COLUMN]
    }
    written = _written(run, rank, thread, ops)
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    work = []
    rows = zip(
        texts["name"], texts["shapes"], texts["dtypes"], ops["args"].to_pylist(), strict=True
    )
    for i, (name, shapes, dtypes, args) in enumerate(rows):
        conv = _NEEDS_OUTPUTS in name
        outputs, arguments = (written.get(i, ""), arguments_of(args)) if conv else ("", ())
        key = (name, shapes, dtypes, outputs, *arguments)
        if key not in found:
            found[key] = _work(name, shapes, dtypes, outputs, arguments)
        work.append(found[key])
    flops, sizes = np.array(work, float).T
    busy = kernel_time(run, rank, thread, start, end)
    on_host = np.array(texts["device"], dtype=object) == "cpu"
    time = np.where(busy > 0, busy, np.where(on_host, end - start, 0))
    frame = pd.DataFrame({**texts, "flops": flops, "bytes": sizes, "time_ns": time})
    table = frame.groupby([*OPERATOR_KEYS, MODULE_COLUMN], sort=False).agg(
        calls=("time_ns", "size"),
        flops=("flops", "first"),
        bytes=("bytes", "first"),
        total_flops=("flops", "sum"),
        total_bytes=("bytes", "sum"),
        time_ns=("time_ns", "sum"),
    )
    steps = run.steps(rank)
    place = enclosing(steps.start_ns, steps.end_ns, start)
    inside = (place >= 0) & ~np.isnan(flops)
    of_steps = np.bincount(place[inside], flops[inside], len(steps)).astype(np.float64)
    return table.reset_index(), of_steps


def _outermost(ops: pa.Table) -> BoolArray:
    """Which operators of a thread are within none of the others."""
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    order = np.lexsort((ops["depth"].to_numpy(), start))
    reach = np.maximum.accumulate(np.concatenate([[-1], end[order]]))[:-1]
    found = np.zeros(len(start), bool)
    found[order] = start[order] >= reach
    return found


def _work(
    name: str, shapes: str, dtypes: str, outputs: str, arguments: tuple[str, ...]
) -> tuple[float, float]:
    """FLOPs and bytes of a call; NaN where they are not known."""
    sizes = [_item_bytes(one) for one in dtypes.split()]
    item = sizes[0] if sizes else 0
    written = tuple(int(one) // item for one in outputs.split()) if item else ()
    try:
        call = OperatorCall(shapes_of(shapes), written, arguments)
    except ValueError:
        return float("nan"), float("nan")
    work: Work | None = work_of(name, call)
    if work is None:
        return float("nan"), float("nan")
    if not sizes or not all(sizes):
        return float(work.flops), float("nan")
    read = sum(prod(one) * size for one, size in zip(call.shapes, sizes, strict=False))
    return float(work.flops), float(read + work.outputs * item)


def _item_bytes(dtype: str) -> int:
    """Bytes of an element: 4 of float32, 2 of bfloat16, 1 of float8_e4m3fn; 0: not known."""
    found = _ITEM_BITS.search(dtype)
    return int(found[1]) // 8 if found else 0


def _written(run: Run, rank: int, thread: str, ops: pa.Table) -> dict[int, str]:
    """Bytes of the tensors that convolutions wrote, `8192 32`, by position in `ops`."""
    convolutions = np.flatnonzero(having(ops["name"], lambda one: _NEEDS_OUTPUTS in one))
    if not len(convolutions):
        return {}
    key = ops["start_ns"].to_numpy() * _DEPTHS + ops["depth"].to_numpy()
    rows = run.events("access", rank, thread, ["start_ns", "depth", "bytes", "write"])
    rows = rows.filter(rows["write"])
    place = rows["start_ns"].to_numpy() * _DEPTHS + rows["depth"].to_numpy()
    sizes = rows["bytes"].to_numpy()
    order = np.argsort(place, kind="stable")
    low = np.searchsorted(place[order], key[convolutions])
    high = np.searchsorted(place[order], key[convolutions], side="right")
    return {
        int(i): " ".join(map(str, sizes[order[a:b]].tolist()))
        for i, a, b in zip(convolutions, low, high, strict=True)
    }
