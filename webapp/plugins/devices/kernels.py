"""Kernels of a run by name, copies by direction, and the operators that launched them."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.names import COMMUNICATION_KERNEL
from lanescope.webapp.analysis.arrow_columns import ends_ns, having, texts_of
from lanescope.webapp.plugins.time.streams import kernel_time
from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.run import Run

COMPUTE, COMMUNICATION, COPY, FILL = "compute", "communication", "copy", "fill"

_KERNEL = schema.OpScope.kernel.name
_COPY = re.compile(r"Memcpy|^dma")
_FILL = re.compile(r"Memset")
_RUNTIME = re.compile(r"(cuda|cu|hip|hsa)[A-Z]")
"""Calls of a device's runtime: what they launch counts for the operator that made them."""

_ATTRIBUTES = {
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_bytes": "shared memory",
    "occupancy": "est. achieved occupancy %",
}
"""Column -> name of the attribute in Kineto's arguments of a kernel."""

KERNEL_COLUMNS = [
    "rank",
    "type",
    "name",
    "calls",
    "time_ns",
    "median_ns",
    "longest_ns",
    "launch_delay_p50_ns",
    *_ATTRIBUTES,
]
COPY_COLUMNS = ["rank", "name", "calls", "bytes", "time_ns", "bytes_per_s"]
OPERATOR_COLUMNS = [
    "rank",
    "name",
    "module",
    "shapes",
    "calls",
    "device_total_ns",
    "device_self_ns",
    "host_ns",
]


def has_kernels(run: Run) -> bool:
    """Returns True if the run has activities of a device."""
    return any(_KERNEL in texts_of(run, "op", "scope", rank) for rank in run.ranks)


def kernel_type(name: str) -> str:
    """Returns compute, communication, copy or fill."""
    if COMMUNICATION_KERNEL.search(name):
        return COMMUNICATION
    if _COPY.search(name):
        return COPY
    return FILL if _FILL.search(name) else COMPUTE


def kernels(run: Run) -> pd.DataFrame:
    """Returns one row per rank and kernel, copy or fill, by time: KERNEL_COLUMNS.

    type: compute, communication, copy or fill. launch_delay_p50_ns: median time from the start of
    the call that launched it to its own start; NaN where no launch is known. grid and block (text),
    registers (per thread), shared_bytes and occupancy (%): the most frequent values; "" or NaN
    where the recording does not hold them.
    """
    every = _activities(run)
    if every.empty:
        return pd.DataFrame(columns=KERNEL_COLUMNS)
    grouped = every.groupby(["rank", "name"], sort=True)
    table = grouped.agg(
        calls=("time_ns", "size"),
        time_ns=("time_ns", "sum"),
        median_ns=("time_ns", "median"),
        longest_ns=("time_ns", "max"),
        launch_delay_p50_ns=("launch_delay_ns", "median"),
        **{name: (name, _most_frequent) for name in _ATTRIBUTES},
    ).reset_index()
    table["type"] = table["name"].map(kernel_type)
    return table[KERNEL_COLUMNS].sort_values(
        "time_ns", ascending=False, kind="stable", ignore_index=True
    )


def copies(run: Run) -> pd.DataFrame:
    """Returns one row per rank and direction of copies, or fill: COPY_COLUMNS, by time.

    bytes: of all calls that state them. bytes_per_s: these over the time of the same calls.
    """
    every = _activities(run)
    if every.empty:
        return pd.DataFrame(columns=COPY_COLUMNS)
    moved = every[every["name"].map(kernel_type).isin((COPY, FILL))]
    timed = moved["time_ns"].where(moved["bytes"].notna(), 0)
    grouped = moved.assign(timed_ns=timed).groupby(["rank", "name"], sort=True)
    table = grouped.agg(
        calls=("time_ns", "size"),
        bytes=("bytes", "sum"),
        time_ns=("time_ns", "sum"),
        timed_ns=("timed_ns", "sum"),
    ).reset_index()
    table["bytes_per_s"] = table["bytes"] / table["timed_ns"].where(table["timed_ns"] > 0) * 1e9
    return table[COPY_COLUMNS].sort_values(
        "time_ns", ascending=False, kind="stable", ignore_index=True
    )


def device_operators(run: Run) -> pd.DataFrame:
    """Returns one row per rank, operator, module and shapes with kernels: OPERATOR_COLUMNS.

    Calls of the runtime, such as cudaLaunchKernel, are no operators here. device_total_ns: time of
    the kernels launched while the operator ran; device_self_ns: without those of operators that it
    called. The rows are by device_self_ns, which adds up to the time of all kernels whose launch is
    within an operator. host_ns: time on the host.
    """
    parts = [
        found
        for one in run.threads
        if _KERNEL in texts_of(run, "op", "scope", one.rank)
        and (found := _operators(run, one.rank, one.thread)) is not None
    ]
    if not parts:
        return pd.DataFrame(columns=OPERATOR_COLUMNS)
    every = pd.concat(parts, ignore_index=True)
    grouped = every.groupby(OPERATOR_COLUMNS[:4], sort=True)
    table = grouped.agg(
        calls=("host_ns", "size"),
        device_total_ns=("device_total_ns", "sum"),
        device_self_ns=("device_self_ns", "sum"),
        host_ns=("host_ns", "sum"),
    ).reset_index()
    return table[OPERATOR_COLUMNS].sort_values(
        ["device_self_ns", "device_total_ns"], ascending=False, kind="stable", ignore_index=True
    )


def _operators(run: Run, rank: int, thread: str) -> pd.DataFrame | None:
    """Operators of a thread within which kernels were launched."""
    columns = ["start_ns", "duration_ns", "name", "scope", "module", "shapes", "depth"]
    ops = run.events("op", rank, thread, columns)
    ops = ops.append_column("end_ns", [ends_ns(ops, run)])
    left_out = having(ops["scope"], _KERNEL.__eq__) | having(ops["name"], _RUNTIME.match)
    ops = ops.filter(pa.array(~left_out))
    start, end = ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy()
    total = kernel_time(run, rank, thread, start, end)
    if not total.any():
        return None
    depth, own = ops["depth"].to_numpy(), total.copy()
    for level in np.unique(depth):
        inner, outer = np.flatnonzero(depth == level), np.flatnonzero(depth == level - 1)
        outer = outer[np.argsort(start[outer], kind="stable")]
        at = enclosing(start[outer], end[outer], start[inner])
        np.subtract.at(own, outer[at[at >= 0]], total[inner[at >= 0]])
    chosen = total > 0
    texts = {
        name: ops[name].cast(pa.string()).fill_null("").to_pandas()[chosen]
        for name in ("name", "module", "shapes")
    }
    numbers = {"device_total_ns": total, "device_self_ns": own, "host_ns": end - start}
    columns_of = texts | {name: values[chosen] for name, values in numbers.items()}
    return pd.DataFrame(columns_of).assign(rank=rank)


@lru_cache(maxsize=4)
def _activities(run: Run) -> pd.DataFrame:
    """All activities of devices: rank, name, time_ns, launch_delay_ns, bytes, `_ATTRIBUTES`."""
    columns = ["start_ns", "duration_ns", "name", "scope", "launch_ns", "args"]
    parts = []
    for rank in run.ranks:
        rows = run.events("op", rank, columns=columns)
        rows = rows.filter(pa.array(having(rows["scope"], _KERNEL.__eq__)))
        start = rows["start_ns"].to_numpy()
        launched = rows["launch_ns"].cast(pa.float64()).to_numpy(zero_copy_only=False)
        found = [_arguments(text) for text in rows["args"].to_pylist()]
        parts.append(
            pd.DataFrame(
                {
                    "rank": rank,
                    "name": rows["name"].cast(pa.string()).to_pandas(),
                    "time_ns": ends_ns(rows, run) - start,
                    "launch_delay_ns": start - launched,
                    "bytes": pd.array([one.get("bytes") for one in found], "Float64").to_numpy(
                        float, na_value=np.nan
                    ),
                    **{
                        column: [_shown(one.get(name)) for one in found]
                        for column, name in _ATTRIBUTES.items()
                    },
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _arguments(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _shown(value: object) -> object:
    """An attribute as a table has it: numbers as they are, `[4, 106, 1]` as text."""
    if isinstance(value, list):
        return " x ".join(map(str, value))
    return value if isinstance(value, (int, float)) else None


def _most_frequent(values: pd.Series) -> object:
    counted = values.dropna().value_counts()
    return counted.index[0] if len(counted) else None
