"""Tabulates collectives: calls, bytes, latency, skew and bandwidth."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.plugins.collectives.skew import arrivals
from lanescope.webapp.runs.run import Run

_COLUMNS = (
    "name",
    "group",
    "group_size",
    "bytes",
    "ranks",
    "calls",
    "total_bytes",
    "unfinished",
    "call_p50_ns",
    "call_p99_ns",
    "call_max_ns",
    "latency_p50_ns",
    "latency_p99_ns",
    "latency_max_ns",
    "skew_p50_ns",
    "skew_max_ns",
    "transfer_p50_ns",
    "algbw_gbs",
    "busbw_gbs",
)

_KEYS = ["name", "group", "group_size", "bytes"]


def collectives(run: Run) -> pd.DataFrame:
    """Returns calls per operation, process group and size, most bytes first.

    name, group, group_size; bytes (input of one call on one rank; of the output for recv), ranks
    (how many made such calls), calls (of all these ranks), total_bytes = bytes * calls;
    unfinished (calls that never returned); call_*_ns: time in the call itself, which for an
    asynchronous one is only its launch; latency_*_ns: from the start of the call to the completion
    of the operation, of the calls whose completion was seen; skew_*_ns: between first and last
    arrival; transfer_p50_ns: from the last arrival to the last completion (see `skew`); both NaN
    for operations that ranks can leave early, and of calls that one rank alone was seen to make;
    algbw_gbs, busbw_gbs: GB/s at that transfer time, else at the latency, see `bandwidth`.
    Percentiles are linear between neighbouring values; NaN where there is no value.
    """
    events = run.events(
        "collective", columns=[*_KEYS, "start_ns", "duration_ns", "complete_ns", "rank"]
    )
    # Subtracted as integers: a column with nulls is float64 in pandas.
    latency = pc.subtract(events["complete_ns"], events["start_ns"])
    frame = to_frame(events.append_column("latency_ns", latency))
    groups = frame.groupby(_KEYS, sort=True, dropna=False)
    table = pd.DataFrame(
        {
            "ranks": groups["rank"].nunique(),
            "calls": groups["rank"].count(),
            "unfinished": groups["rank"].count() - groups["duration_ns"].count(),
        }
    )
    for prefix, column in (("call", "duration_ns"), ("latency", "latency_ns")):
        table[f"{prefix}_p50_ns"] = groups[column].quantile(0.5)
        table[f"{prefix}_p99_ns"] = groups[column].quantile(0.99)
        table[f"{prefix}_max_ns"] = groups[column].max().astype("float64")
    table = table.reset_index()
    if table["group_size"].isna().any():  # imported traces may lack it
        table["group_size"] = table["group_size"].astype("Int64")
    table["total_bytes"] = table["bytes"] * table["calls"]
    table = _with_rates(run, table)
    return table[list(_COLUMNS)].sort_values(
        ["total_bytes", "calls"], ascending=False, kind="stable", ignore_index=True
    )


def _with_rates(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Adds skew, transfer time and bandwidths."""
    keys = ["name", "group", "bytes"]
    came = arrivals(run)
    came = came[came["ranks"] > 1].groupby(keys)  # with one rank nothing shows who came last
    rates = pd.DataFrame(
        {
            "skew_p50_ns": came["skew_ns"].quantile(0.5),
            "skew_max_ns": came["skew_ns"].max().astype("float64"),
            "transfer_p50_ns": came["transfer_ns"].quantile(0.5),
        }
    )
    table = table.merge(rates.reset_index(), on=keys, how="left")
    time = table["transfer_p50_ns"].fillna(table["latency_p50_ns"])
    moved, factors = [], []
    for name, size, ranks in zip(table["name"], table["bytes"], table["group_size"], strict=True):
        if pd.isna(ranks):
            moved.append(float("nan"))
            factors.append(float("nan"))
            continue
        factor = bus_factor(str(name), int(ranks))
        moved.append(float(operation_bytes(str(name), int(size), int(ranks))))
        factors.append(float("nan") if factor is None else factor)
    # Bytes per nanosecond are gigabytes per second.
    speed = np.array(moved) / time.where(time > 0)
    known = ~np.isnan(factors)
    return table.assign(algbw_gbs=speed.where(known), busbw_gbs=speed * np.array(factors))


_SHARE = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
)
_TWICE = ("all_reduce", "all_reduce_coalesced")
_WHOLE = ("broadcast", "reduce", "send", "recv")

_INPUT_IS_A_PART = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "gather",
    "scatter",
)
"""Operations whose recorded bytes are those of one rank's part; S is that of all parts."""


def bus_factor(name: str, ranks: int) -> float | None:
    """Returns busbw / algbw of an operation over n ranks; None where none is defined (barrier).

    all_reduce: 2 (n - 1) / n; all_gather, reduce_scatter, all_to_all, gather, scatter: (n - 1) / n;
    broadcast, reduce, send, recv: 1.
    """
    if name in _WHOLE:
        return 1.0
    if ranks < 1 or name not in (*_TWICE, *_SHARE):
        return None
    return (2.0 if name in _TWICE else 1.0) * (ranks - 1) / ranks


def operation_bytes(name: str, recorded: int, ranks: int) -> int:
    """Returns S of an operation whose call on one rank recorded `recorded` bytes.

    nccl-tests takes the larger of input and output buffer: n times a rank's part for all_gather.
    """
    return recorded * ranks if name in _INPUT_IS_A_PART else recorded
