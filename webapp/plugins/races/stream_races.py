"""Finds data races between streams of a device: unordered accesses, at least one a write.

Operators of one thread run in the order of its lines only if they go to one stream. Two streams run
at the same time, no matter which thread gives them work, unless one waits for an event of the
other, or the host for either, between the two operators.

A stream does in order what it is given, like a thread. What a thread knows goes on to a stream with
each operator that it gives to it. A stream knows of another by an event that the one recorded and
the other waited for; a thread, and so what it gives away afterwards, by waiting for an event, a
stream or a device (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution").
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.names import CAPTURE, NOTED_ACCESSES
from lanescope.webapp.analysis.access_site import CallSites
from lanescope.webapp.analysis.arrow_columns import ends_ns
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.plugins.races.access_table import AccessColumns, Reader
from lanescope.webapp.plugins.races.races import (
    Race,
    find_races,
    processes_of,
    races_read,
    windows_of,
)
from lanescope.webapp.plugins.races.vector_clocks import Order, SyncEvent, order_by, sync_events
from lanescope.webapp.runs.intervals import Intervals, enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array, Window

_RECEIVING = [kind.name for kind in schema.RECEIVING | schema.OF_DEVICES]
_DEFAULT = 1


def all_races(run: Run) -> tuple[Race, ...]:
    """Returns races of threads, and those of streams at places where no threads race anyway."""
    races = find_races(run)
    known = {_places(race) for race in races}
    return *races, *(race for race in find_stream_races(run) if _places(race) not in known)


def _places(race: Race) -> frozenset[tuple[str, str | None]]:
    return frozenset((touch.op, touch.where) for touch in (race.first, race.second))


@lru_cache(maxsize=4)
def find_stream_races(run: Run) -> tuple[Race, ...]:
    """Returns all of the run, one per pair of places, by instant; none where streams were not
    recorded."""
    found = [race for rank in run.ranks for race in _of_rank(run, rank)]
    return tuple(sorted(found, key=lambda race: race.first.start_ns))


@per_rank
def _of_rank(run: Run, rank: int) -> list[Race]:
    if not run.manifest["options"].get("streams"):  # else all accesses would be gone through
        return []
    return [race for threads in processes_of(run, rank) for race in _of_process(run, rank, threads)]


def _of_process(run: Run, rank: int, threads: Sequence[str]) -> list[Race]:
    streams = streams_of(run, rank, threads)
    windows = windows_of(run, rank, threads)
    storages, copied = _shared(run, rank, threads, windows)
    if not len(storages):
        return []
    order, sites = stream_order(run, rank, threads, streams, copied), CallSites()
    captures = _captures(run, rank, threads)

    def placed(thread: int, columns: AccessColumns) -> tuple[Int64Array, Int64Array]:
        of_host = np.isin(columns["storage"], copied)
        host = np.where(of_host, len(streams) + thread, -1)
        position, segment = _placed(order, streams, columns, host)
        # What is captured into a CUDA graph does not run then.
        captured = enclosing(captures.start, captures.end, columns["start_ns"]) >= 0
        return np.where(captured, -1, position), segment

    reader = Reader(run, rank, threads, storages, sites, placed)
    races = races_read(run, rank, order, reader, sites, windows, empty=False)
    # What one stream makes and another uses may be half made: that it was handed on, as between
    # threads, says nothing here. Where no stream is concerned, threads race.
    return [replace(race, published=False) for race in races if race.of_streams]


def _captures(run: Run, rank: int, threads: Sequence[str]) -> Intervals:
    """Returns when any of the threads captured a CUDA graph."""
    rows = run.events("phase", rank, columns=["start_ns", "duration_ns", "name", "thread"])
    wanted = pc.and_(pc.equal(rows["name"], CAPTURE), pc.is_in(rows["thread"], pa.array(threads)))
    rows = rows.filter(wanted)
    return Intervals.of(rows["start_ns"].to_numpy(), ends_ns(rows, run))


def _shared(
    run: Run, rank: int, threads: Sequence[str], windows: Sequence[Window | None]
) -> tuple[Int64Array, Int64Array]:
    """Addresses that a stream and another one, or a thread, touched, and one wrote to; sorted.

    And those among them that operators of threads touched: memory of the host.
    """
    pairs, written = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for number, thread in enumerate(threads):
        for window in windows:
            rows = run.events("access", rank, thread, ["storage", "stream", "write"], window)
            stream = rows["stream"].fill_null(0).to_numpy().astype(np.int64)
            place = np.where(stream > 0, stream, -1 - number)
            storage = rows["storage"].to_numpy().astype(np.int64)
            pairs.append(np.unique(np.stack([storage, place], 1), axis=0))
            written.append(pc.unique(rows["storage"].filter(rows["write"])).to_numpy())
    storage, place = np.unique(np.concatenate(pairs), axis=0).T
    changed = np.isin(storage, np.concatenate(written))
    on_streams, count = np.unique(storage[changed & (place > 0)], return_counts=True)
    mixed = np.intersect1d(on_streams, storage[changed & (place < 0)])
    # Threads release the memory of streams too; only operators use memory of the host.
    copied = _used_by_operators(run, rank, threads, windows, mixed)
    return np.union1d(on_streams[count > 1], copied), copied


def _used_by_operators(
    run: Run,
    rank: int,
    threads: Sequence[str],
    windows: Sequence[Window | None],
    storages: Int64Array,
) -> Int64Array:
    """Returns addresses that operators of the host read or write: threads also release others."""
    found, sites = [np.zeros(0, np.int64)], CallSites()
    for thread in threads if len(storages) else ():
        for window in windows:
            columns = ["start_ns", "depth", "storage", "stream"]
            rows = run.events("access", rank, thread, columns, window)
            of_host = pc.equal(rows["stream"].fill_null(0), 0)
            rows = rows.filter(pc.and_(of_host, pc.is_in(rows["storage"], pa.array(storages))))
            start, depth = rows["start_ns"].to_numpy(), rows["depth"].to_numpy()
            numbers, _ = sites.of(run, rank, thread, start, depth, window)
            used = [sites.known[number].op not in NOTED_ACCESSES for number in numbers.tolist()]
            found.append(rows["storage"].to_numpy()[np.array(used, bool)])
    return np.unique(np.concatenate(found))


def _placed(
    order: Order, streams: Int64Array, columns: AccessColumns, host: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Position and segment of what made each access: a stream, or else `host`; -1: neither."""
    stream = columns["stream"].astype(np.int64)
    position = np.where(stream > 0, np.searchsorted(streams, stream), host)
    segment = np.zeros(len(stream), np.int64)
    for at in np.unique(position[position >= 0]).tolist():
        own = position == at
        segment[own] = order.segments(at, columns["start_ns"][own])
    return position, segment


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
