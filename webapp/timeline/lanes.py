"""Which lanes a run has, in the order in which they are drawn.

Rank by rank: one lane per thread that did anything, one per process group (each collective from
its call to its completion), and one per counter: the norm of the whole gradient, and every logged
value of each process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import Float64Array, Int64Array
from lanescope.webapp.timeline.lod_buckets import runs
from lanescope.webapp.timeline.spans import (
    AXIS_END,
    LaneSlices,
    SpanNames,
    collective_slices,
    thread_slices,
)
from lanescope.webapp.timeline.styles import coded, phase_styles

THREAD_LANE, COLLECTIVES, COUNTER, BASELINE = "thread", "collectives", "counter", "baseline"

GRADIENT_NORM = "gradient norm"

_OWN = {
    "lanescope/rss": ("memory of the process", "resident set at each step", "B"),
    schema.RECORDER_MEMORY: ("memory of the recorder", "what it added to the process", "B"),
    schema.ADDED_NORM: ("norm added", "of what each thread's backward added to gradients", ""),
    "lanescope/device_clock_error": ("device clock error", "host and device clocks apart", "ns"),
}
"""The recorder's own series: what their lanes are called, what they count, and in which unit."""


def has_counter(series: str) -> bool:
    """Returns False for a series of the recorder that only checks and pages read, such as hashes,
    addresses, settings and norms of layers."""
    return series in _OWN or not series.startswith("lanescope/")


@dataclass(frozen=True)
class Lane:
    """One lane as the page lists it. Times are ns from the start of the run."""

    key: str  # the same for the same lane each time the run is opened
    rank: int
    kind: str  # THREAD, COLLECTIVES, COUNTER or BASELINE
    label: str
    title: str  # what the label is short for
    rows: int
    phase_rows: int  # leading rows that hold phases
    first_ns: int
    last_ns: int
    id: int = -1  # position among the run's lanes
    pid: int | None = None
    thread: str | None = None
    process_group: str | None = None
    series: str | None = None  # of a counter; None: the gradient norm
    unit: str = ""
    min: float | None = None  # least and greatest finite value of a counter
    max: float | None = None
    baseline: str | None = None  # of a lane of kind BASELINE: the thread there
    above: int | None = None  # and which lane it is drawn above; None: below those of its rank


@dataclass(frozen=True, eq=False)
class LaneSamples:
    """The samples of a counter lane in order of time."""

    time: Int64Array
    value: Float64Array
    step: Int64Array


def lanes_of(run: Run, names: SpanNames) -> Iterator[tuple[Lane, LaneSlices | LaneSamples]]:
    """Yields all lanes and their contents, one lane in memory at a time."""
    number = 0
    for rank in run.ranks:
        for lane, content in _of_rank(run, rank, names):
            yield replace(lane, id=number), content
            number += 1


def drawn_order(run: Run, lanes: Sequence[Lane]) -> list[tuple[Lane, int | None]]:
    """Returns the lanes as they are drawn, each with its process where its rank has several.

    Rank by rank, and process by process, the rank's own first, with the lanes of no process (the
    gradient norm, collectives). A baseline's lane is right above that of the run. Its number comes
    after all of the run's, which so have the same numbers with and without a baseline.
    """
    over = {lane.above: lane for lane in lanes if lane.above is not None}
    by_rank: dict[int, list[Lane]] = {}
    for lane in lanes:
        by_rank.setdefault(lane.rank, []).append(lane)
    found: list[tuple[Lane, int | None]] = []
    for rank, mine in by_rank.items():
        first = next((thread.pid for thread in run.threads_of(rank)), None)
        processes = dict.fromkeys(
            [first, *(lane.pid for lane in mine if lane.kind != BASELINE and lane.pid is not None)]
        )
        for process in processes:
            within = process if len(processes) > 1 else None
            for lane in mine:
                if lane.kind != BASELINE and (lane.pid or first) == process:
                    pair = [over[lane.id], lane] if lane.id in over else [lane]
                    found += [(one, within) for one in pair]
        found += [(lane, None) for lane in mine if lane.kind == BASELINE and lane.above is None]
    return found


def gradient_norm_samples(run: Run, rank: int) -> LaneSamples:
    """Returns the norm of the whole gradient per step: sqrt(sum over parameters of norm^2).

    At the instant of the step's last gradient. Parameters without gradient are left out, steps
    without any gradient too. NaN and infinity are passed on.
    """
    rows = run.events("gradient", rank, columns=["time_ns", "step", "norm"])
    rows = rows.filter(pc.is_valid(rows["norm"]))
    step = rows["step"].to_numpy().astype(np.int64)
    order = np.argsort(step, kind="stable")
    step, time = step[order], rows["time_ns"].to_numpy()[order]
    norm = rows["norm"].to_numpy()[order]
    if not len(step):
        return LaneSamples(time, norm, step)
    first = runs(step)
    total = np.sqrt(np.add.reduceat(norm * norm, first))
    return _in_time(np.maximum.reduceat(time, first), total, step[first])


def _of_rank(
    run: Run, rank: int, names: SpanNames
) -> Iterator[tuple[Lane, LaneSlices | LaneSamples]]:
    styles = functools.cache(functools.partial(phase_styles, run, rank))
    for thread in run.threads_of(rank):
        slices = thread_slices(run, thread, names, styles)
        if slices is not None:
            yield _thread_lane(run, thread, slices), slices
    groups = collective_slices(run, rank, names)
    for (group, size), slices in groups.items():
        lane = Lane(
            key=f"{rank}/collectives/{group}",
            rank=rank,
            kind=COLLECTIVES,
            label="collectives" if len(groups) == 1 else f"collectives {group}",
            title=f"collectives of process group {group} ({size} ranks), call to completion",
            process_group=group,
            **_shape(slices),
        )
        yield lane, slices
    norms = gradient_norm_samples(run, rank)
    if len(norms.time):
        title = "L2 norm of the whole gradient as the optimizer saw it"
        yield _counter_lane(f"{rank}/{GRADIENT_NORM}", rank, GRADIENT_NORM, title, norms), norms
    yield from _values(run, rank)


def _thread_lane(run: Run, thread: Thread, slices: LaneSlices) -> Lane:
    process = run.process(rank=thread.rank, pid=thread.pid)
    host = f" on {process['host']}" if process else ""
    what = f"{thread.kind} thread {thread.native_id}"
    if thread.kind == schema.ThreadKind.stream.name:
        what = "kernels and copies on a stream of its device"
    return Lane(
        key=thread.key,
        rank=thread.rank,
        kind=THREAD_LANE,
        label=thread.name,
        title=f"{thread.process_name or 'process'} {thread.pid}{host}, {what}",
        pid=thread.pid,
        thread=thread.thread,
        **_shape(slices),
    )


def _values(run: Run, rank: int) -> Iterator[tuple[Lane, LaneSamples]]:
    """One counter per series and process; threads of a process write to the same series."""
    rows = run.events("value", rank, columns=["time_ns", "name", "value", "step", "thread"])
    series, names = coded(rows["name"])
    thread, threads = coded(rows["thread"])
    pids = [int(text.partition("-")[0]) for text in threads]
    pid = np.array(pids or [0])[thread]
    main = next((t.pid for t in run.threads_of(rank)), None)  # the rank's own comes first
    for one in dict.fromkeys(pids):
        own = one == main
        for code, name in enumerate(names):
            if not has_counter(name):
                continue
            chosen = np.flatnonzero((series == code) & (pid == one))
            if not len(chosen):
                continue
            part = rows.take(pa.array(chosen))
            samples = _in_time(
                part["time_ns"].to_numpy(),
                part["value"].to_numpy(),
                part["step"].to_numpy().astype(np.int64),
            )
            called, what, unit = _OWN.get(name, (name, "logged", ""))
            label = called if own else f"{called} ({one})"
            title = f"value {name} of process {one}, {what}"
            key = f"{rank}/value/{name}" if own else f"{rank}/value/{name}/{one}"
            lane = _counter_lane(key, rank, label, title, samples)
            yield replace(lane, pid=one, series=name, unit=unit), samples


def _counter_lane(key: str, rank: int, label: str, title: str, samples: LaneSamples) -> Lane:
    finite = samples.value[np.isfinite(samples.value)]
    return Lane(
        key=key,
        rank=rank,
        kind=COUNTER,
        label=label,
        title=title,
        rows=1,
        phase_rows=0,
        first_ns=int(samples.time[0]),
        last_ns=int(samples.time[-1]),
        min=float(finite.min()) if len(finite) else None,
        max=float(finite.max()) if len(finite) else None,
    )


class _Shape(TypedDict):
    rows: int
    phase_rows: int
    first_ns: int
    last_ns: int


def _shape(slices: LaneSlices) -> _Shape:
    return {
        "rows": len(slices.row_table),
        "phase_rows": slices.phase_rows,
        "first_ns": int(slices.start.min()),
        "last_ns": int(slices.end.max()),
    }


def _in_time(time: Int64Array, value: Float64Array, step: Int64Array) -> LaneSamples:
    time = np.clip(time, 0, AXIS_END)
    order = np.argsort(time, kind="stable")
    return LaneSamples(time[order], value[order], step[order])
