"""Finds data races between streams of a device: unordered accesses, at least one a write.

Operators of one thread run in the order of its lines only if they go to one stream. Two streams run
at the same time, no matter which thread gives them work, unless one waits for an event of the
other, or the host for either, between the two operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from lanescope.webapp.plugins.races.stream_order import stream_order, streams_of
from lanescope.webapp.plugins.races.vector_clocks import Order
from lanescope.webapp.runs.intervals import Intervals, enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array, Window


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
