"""Device time by the ranges that a program names: record_function, phases, torch's own marks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.plugins.time.breakdown import autograd_threads, training_thread
from lanescope.webapp.plugins.time.streams import Stream, rank_streams
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.threads import Thread
from lanescope.webapp.runs.types import Int64Array

_COLUMNS = [
    "rank",
    "name",
    "calls",
    "kernels",
    "device_total_ns",
    "device_self_ns",
    "device_span_ns",
    "host_ns",
]

_USER = schema.OpScope.user.name
_MARK = schema.PhaseKind.mark.name
_OTHERS = '"Python id"|"cuda_sync_kind"'
"""Arguments of slices of scope `user` that are no annotations: functions of Python and waits of
streams, in traces of torch.profiler."""
_STEP = re.compile(r"(?:Profiler)?Step#\d+")
_STEP_NAME = "ProfilerStep"


def device_annotations(run: Run) -> pd.DataFrame:
    """Returns one row per rank and annotation with kernels, by device_total_ns: COLUMNS.

    An annotation holds the kernels that its thread launched while it was open; one of the training
    thread also those of autograd threads. device_self_ns leaves out those of annotations within it
    on its thread.
    device_span_ns: from the start of its first kernel to the end of its last, summed over the
    calls; in a trace of torch.profiler that is the length of its `gpu_user_annotation`. host_ns:
    time on the host. Where a trace holds an annotation on streams alone, kernels count that begin
    within it on the stream, and host_ns is 0. Steps of torch.profiler share the name ProfilerStep.
    """
    parts = [pd.DataFrame(columns=_COLUMNS)]
    for rank in run.ranks:
        every = rank_streams(run, rank)
        if every:
            parts += _of_rank(run, rank, list(every.values()))
    table = pd.concat(parts[1:], ignore_index=True) if len(parts) > 1 else parts[0]
    grouped = table.groupby(["rank", "name"], sort=True)
    return (
        grouped.sum()
        .reset_index()[_COLUMNS]
        .sort_values("device_total_ns", ascending=False, kind="stable", ignore_index=True)
    )


def _of_rank(run: Run, rank: int, every: list[Stream]) -> Iterator[pd.DataFrame]:
    """Yields a row per annotation and call with kernels."""
    threads = {one.thread: one for one in run.threads_of(rank)}
    training = training_thread(run, rank)
    of_streams = {stream.thread for stream in every}
    launched = np.concatenate([stream.launched for stream in every])
    start = np.concatenate([stream.start for stream in every])
    end = np.concatenate([stream.end for stream in every])
    launchers = np.concatenate([np.array(stream.launchers, dtype=object) for stream in every])
    on_host: set[str] = set()
    for name, thread in threads.items():
        if name in of_streams:
            continue
        working = [name]
        if name == training.thread:
            working += [one.thread for one in autograd_threads(run, thread)]
        mine = (launched >= 0) & np.isin(launchers, working)
        if mine.any():
            table = _measured(_ranges(run, thread), launched[mine], start[mine], end[mine])
            on_host.update(table["name"])
            yield table
    for stream in every:
        ranges = _ranges(run, threads[stream.thread])
        ranges = ranges[~ranges["name"].map(_on_host).isin(on_host)]
        yield _measured(ranges, stream.start, stream.start, stream.end).assign(host_ns=0)


def _on_host(name: str) -> str:
    """Returns the name of the same annotation on the host, where torch's marks are phases."""
    return name.partition("Optimizer.step#")[2] or name.strip("# ")


def _ranges(run: Run, thread: Thread) -> pd.DataFrame:
    """Returns the annotations of a thread or stream: rank, name, start, end, outer ones first."""
    ops = run.events(
        "op", thread.rank, thread.thread, ["start_ns", "duration_ns", "name", "scope", "args"]
    )
    named = pc.fill_null(pc.match_substring_regex(ops["args"], _OTHERS), False)
    ops = ops.filter(pc.and_(pa.array(having(ops["scope"], _USER.__eq__)), pc.invert(named)))
    phases = run.events(
        "phase", thread.rank, thread.thread, ["start_ns", "duration_ns", "name", "kind"]
    )
    phases = phases.filter(pa.array(~having(phases["kind"], _MARK.__eq__)))
    parts = [
        pd.DataFrame(
            {
                "name": rows["name"].cast(pa.string()).to_pandas(),
                "start": rows["start_ns"].to_numpy(),
                "end": ends_ns(rows, run),
            }
        )
        for rows in (ops, phases)
    ]
    found = pd.concat(parts, ignore_index=True)
    found["name"] = found["name"].where(~found["name"].str.fullmatch(_STEP), _STEP_NAME)
    found["rank"] = thread.rank
    return found.sort_values(["start", "end"], ascending=[True, False], ignore_index=True)


def _measured(
    ranges: pd.DataFrame, instants: Int64Array, start: Int64Array, end: Int64Array
) -> pd.DataFrame:
    """Returns COLUMNS of the ranges that hold some of the instants, one for each kernel."""
    order = np.argsort(instants, kind="stable")
    instants, start, end = instants[order], start[order], end[order]
    low = np.searchsorted(instants, ranges["start"].to_numpy())
    high = np.searchsorted(instants, ranges["end"].to_numpy())
    some = high > low
    ranges, low, high = ranges[some], low[some], high[some]
    spent = np.concatenate([[0], np.cumsum(end - start)])
    total = spent[high] - spent[low]
    begins, ends = ranges["start"].to_numpy(), ranges["end"].to_numpy()
    own = total.copy()
    parents = _parents(begins, ends)
    inner = parents >= 0
    np.subtract.at(own, parents[inner], total[inner])
    bounds = np.column_stack([low, high]).ravel()
    first = np.minimum.reduceat(np.append(start, 0), bounds)[::2] if len(bounds) else total
    last = np.maximum.reduceat(np.append(end, 0), bounds)[::2] if len(bounds) else total
    return pd.DataFrame(
        {
            "rank": ranges["rank"].to_numpy(),
            "name": ranges["name"].to_numpy(),
            "calls": 1,
            "kernels": high - low,
            "device_total_ns": total,
            "device_self_ns": own,
            "device_span_ns": last - first,
            "host_ns": ends - begins,
        }
    )


def _parents(begins: Int64Array, ends: Int64Array) -> Int64Array:
    """Returns the innermost range around each, -1: none. Outer ones come first."""
    found = np.full(len(begins), -1, np.int64)
    around: list[int] = []
    until = ends.tolist()
    for i, (begin, end) in enumerate(zip(begins.tolist(), until, strict=True)):
        while around and (until[around[-1]] <= begin or until[around[-1]] < end):
            around.pop()
        if around:
            found[i] = around[-1]
        around.append(i)
    return found
