"""What happened before what on the streams of devices that a process gave work to.

A stream does in order what it is given, like a thread. What a thread knows goes on to a stream with
each operator that it gives to it. A stream knows of another by an event that the one recorded and
the other waited for; a thread, and so what it gives away afterwards, by waiting for an event, a
stream or a device (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution").
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.plugins.races.vector_clocks import Order, SyncEvent, order_by, sync_events
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_RECEIVING = [kind.name for kind in schema.RECEIVING | schema.OF_DEVICES]
_DEFAULT = 1


def _stream_name(ordinal: int) -> str:
    """Returns what a stream is called, by its number in its process."""
    return "the default stream" if ordinal == _DEFAULT else f"stream {ordinal}"


def streams_of(run: Run, rank: int, process: Sequence[str]) -> Int64Array:
    """Returns numbers of the streams that operators of a process were given to, sorted."""
    found = [np.zeros(0, np.int64)]
    for thread in process:
        for piece in run.pieces("access", rank, thread, ["stream"]):
            found.append(pc.unique(piece["stream"].fill_null(0)).to_numpy().astype(np.int64))
    streams = np.unique(np.concatenate(found))
    return streams[streams > 0]


def stream_order(
    run: Run, rank: int, process: Sequence[str], streams: Int64Array, copied: Int64Array
) -> Order:
    """Returns the order among some streams of a process and its threads, streams first.

    `copied`: addresses of the host's memory that streams read or write, sorted; without any, the
    order is that of the streams alone.
    """
    handovers = heapq.merge(
        sync_events(run, rank, process),
        _handovers(run, rank, process, streams.tolist(), copied),
        key=lambda handover: handover.instant,
    )
    names = [_stream_name(stream) for stream in streams.tolist()]
    return order_by(handovers, [*names, *process] if len(copied) else names)


class _StreamCall(NamedTuple):
    """What a thread did with a stream (0: none, or all). `kind` "": it gave an operator to it."""

    instant: int
    thread: str
    kind: str
    stream: int
    event: int


def _handovers(
    run: Run, rank: int, process: Sequence[str], streams: Sequence[int], copied: Int64Array
) -> Iterator[SyncEvent]:
    latest: dict[int, int] = {}  # event -> how often it has been recorded: the last time counts
    rows = heapq.merge(*(_stream_calls(run, rank, thread, copied) for thread in process))
    for instant, thread, kind, stream, event in rows:
        name = _stream_name(stream)
        if kind in ("", "device_event_record"):
            yield SyncEvent(instant, thread, ("given", thread), True)
            yield SyncEvent(instant, name, ("given", thread), False)
        if kind == "device_event_record":
            latest[event] = latest.get(event, 0) + 1
            yield SyncEvent(instant, name, ("event", event, latest[event]), True)
        elif kind == "device_event_wait":
            yield SyncEvent(instant, name, ("event", event, latest.get(event)), False)
        elif kind == "device_event_synchronize":
            yield SyncEvent(instant, thread, ("event", event, latest.get(event)), False)
        elif kind:
            for one in [stream] if kind == "stream_synchronize" else streams:
                yield SyncEvent(instant, _stream_name(one), ("stream", one), True)
                yield SyncEvent(instant, thread, ("stream", one), False)


def _stream_calls(run: Run, rank: int, thread: str, copied: Int64Array) -> list[_StreamCall]:
    """What one thread did with streams, in order."""
    columns = ["start_ns", "duration_ns", "kind", "stream", "object"]
    table = run.events("sync", rank, thread, columns)
    table = table.filter(pc.is_valid(table["duration_ns"]))
    kinds = table["kind"].cast(pa.string())
    learnt = table.filter(pc.is_in(kinds, pa.array(_RECEIVING)))
    instants = np.sort(learnt["start_ns"].to_numpy() + learnt["duration_ns"].to_numpy())
    own = table.filter(pc.is_in(kinds, pa.array([kind.name for kind in schema.OF_DEVICES])))
    rows = [
        _StreamCall(row["start_ns"], thread, row["kind"], row["stream"] or 0, row["object"] or 0)
        for row in own.to_pylist()
    ]
    given = _given(run, rank, thread, instants, copied)
    return sorted([*rows, *(_StreamCall(start, thread, "", stream, 0) for start, stream in given)])


def _given(
    run: Run, rank: int, thread: str, instants: Int64Array, copied: Int64Array
) -> list[tuple[int, int]]:
    """(when, stream) of what a thread gave to streams: the first of each after it learnt more.

    And all that concerns memory of the host, which the thread may have used before.
    """
    first: dict[tuple[int, int], int] = {}
    copies: set[tuple[int, int]] = set()
    for piece in run.pieces("access", rank, thread, ["start_ns", "stream", "storage"]):
        stream = piece["stream"].fill_null(0).to_numpy().astype(np.int64)
        start = piece["start_ns"].to_numpy()[stream > 0]
        of_host = np.isin(piece["storage"].to_numpy()[stream > 0], copied)
        stream = stream[stream > 0]
        copies.update(zip(start[of_host].tolist(), stream[of_host].tolist(), strict=True))
        since = np.searchsorted(instants, start, side="right")
        by = np.lexsort((start, stream, since))
        new = np.ones(len(by), bool)
        new[1:] = (np.diff(since[by]) != 0) | (np.diff(stream[by]) != 0)
        for at in by[new].tolist():
            key = int(since[at]), int(stream[at])
            first[key] = min(first.get(key, int(start[at])), int(start[at]))
    return [*copies, *((when, stream) for (_, stream), when in first.items())]
