"""What happened before what, among the threads of one process: vector clocks (Fidge, Mattern 1988).

A thread's time is cut into segments at the instants that order it with others. Event a of thread A
happened before event b of thread B if A published, after a, what B had received before b.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array

VectorClock = NDArray[np.int32]

_PEERS = {
    schema.SyncKind.thread_start.name: ("begin", True),
    schema.SyncKind.thread_begin.name: ("begin", False),
    schema.SyncKind.thread_end.name: ("end", True),
    schema.SyncKind.thread_join.name: ("end", False),
}
"""Kinds that concern a thread: which of its instants, and whether it is published."""

_ONCE = {schema.SyncKind.queue_put.name, schema.SyncKind.queue_get.name}
"""What is published is received once, in the order of publishing."""


@dataclass(frozen=True)
class Order:
    """Segments of some threads, one after another: rows `first[t]` to `first[t + 1] - 1` are t's.

    `starts` (ns), `own` (the thread's own clock in the segment) and `clocks` (segments x threads:
    how far the segment knows of each thread) have a row per segment; the first segment of a thread
    starts before all time.
    """

    threads: tuple[str, ...]
    first: Int64Array
    starts: Int64Array
    own: VectorClock
    clocks: VectorClock

    def segments(self, thread: int, instants: Int64Array) -> Int64Array:
        """Returns the row of the segment of `thread` (position in `threads`) that holds each
        instant."""
        begin, end = int(self.first[thread]), int(self.first[thread + 1])
        return begin - 1 + np.searchsorted(self.starts[begin:end], instants, side="right")

    def unordered(
        self, thread: int, instants: Int64Array, other: int, others: Int64Array
    ) -> tuple[int, int] | None:
        """Returns the places of the first instants of two threads, each ascending, where neither
        happened before the other."""
        ours, theirs = self.segments(thread, instants), self.segments(other, others)
        # Those of one that are unordered with a given one of the other are consecutive.
        low = self.own[ours].searchsorted(self.clocks[theirs, thread], side="right")
        high = self.clocks[ours, other].searchsorted(self.own[theirs], side="left")
        found = np.flatnonzero(high > low)
        if not len(found):
            return None
        first = int(found[np.argmin(low[found])])
        return int(low[first]), first


def order_of(
    run: Run, rank: int, process: Sequence[str], threads: Sequence[str], *, by_locks: bool = True
) -> Order:
    """Returns the order among `threads`, brought about by all threads of their `process`.

    Without `by_locks` what a lock orders counts for nothing: who takes it first is left to chance.
    """
    events = sync_events(run, rank, process)
    if not by_locks:  # of all that orders threads they alone have numbers above zero
        events = (one for one in events if not (isinstance(one.by, int) and one.by > 0))
    return order_by(events, threads)


def order_by(events: Iterable[SyncEvent], threads: Sequence[str]) -> Order:
    """Returns the order among `threads` that hand-overs bring about, those of others among them."""
    position = {thread: i for i, thread in enumerate(threads)}
    width = len(threads)
    current: dict[str, VectorClock] = {}
    for thread in threads:
        current[thread] = np.zeros(width, np.int32)
        current[thread][position[thread]] = 1
    rows: list[list[tuple[int, VectorClock]]] = [
        [(-(2**62), current[thread].copy())] for thread in threads
    ]
    published: dict[object, VectorClock] = {}
    items: dict[object, deque[VectorClock]] = {}  # of those that are received once
    for instant, thread, target, publishes, once in events:
        clock = current.get(thread)
        if clock is None:
            clock = current[thread] = np.zeros(width, np.int32)
        at = position.get(thread)
        if publishes:
            if once:
                items.setdefault(target, deque()).append(clock.copy())
            else:
                known = published.get(target)
                published[target] = clock.copy() if known is None else np.maximum(known, clock)
            if at is None:
                continue
            clock[at] += 1
        else:
            held = _taken(items, target) if once else published.get(target)
            if held is None or not (held > clock).any():
                continue
            np.maximum(clock, held, out=clock)
            if at is None:
                continue
        rows[at].append((instant, clock.copy()))
    first = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
    starts = np.array([instant for r in rows for instant, _ in r], np.int64)
    clocks = np.array([clock for r in rows for _, clock in r], np.int32).reshape(-1, width)
    owner = np.repeat(np.arange(width), np.diff(first))
    return Order(tuple(threads), first, starts, clocks[np.arange(len(clocks)), owner], clocks)


def _taken(items: dict[object, deque[VectorClock]], target: object) -> VectorClock | None:
    """The first of those put under that number. An item may be put again before it is taken."""
    waiting = items.get(target)
    if not waiting:
        return None
    held = waiting.popleft()
    if not waiting:
        del items[target]
    return held


class SyncEvent(NamedTuple):
    """One thread published, or received, by something that others know as well."""

    instant: int
    thread: str
    by: object
    publishes: bool
    once: bool = False  # a publication is received once


def sync_events(run: Run, rank: int, process: Sequence[str]) -> Iterator[SyncEvent]:
    """Yields those of the threads of a process, in their order in time."""
    columns = ["start_ns", "duration_ns", "kind", "peer", "object"]
    instants: list[Int64Array] = []
    published: list[BoolArray] = []
    rows: list[tuple[str, object, bool]] = []
    publishes = {kind.name for kind in schema.PUBLISHING}
    receives = {kind.name for kind in schema.RECEIVING}
    for thread in process:
        table = run.events("sync", rank=rank, thread=thread, columns=columns)
        table = table.filter(pc.is_valid(table["duration_ns"]))
        kinds = table["kind"].cast(pa.string()).to_pylist()
        start = table["start_ns"].to_numpy()
        instant = start + table["duration_ns"].to_numpy()
        peers, objects = table["peer"].to_pylist(), table["object"].to_pylist()
        gives = np.array([kind in publishes for kind in kinds], bool)
        used = np.array([kind in publishes or kind in receives for kind in kinds], bool)
        instants.append(np.where(gives, start, instant)[used])
        published.append(gives[used])
        for i in np.flatnonzero(used).tolist():
            kind = kinds[i]
            by = _PEERS.get(kind)
            if by is None:
                target: object = objects[i]
            else:
                own = kind in _OF_ITSELF
                target = (by[0], thread if own else peers[i])
            rows.append((thread, target, kind in _ONCE))
    if not rows:
        return
    when, gives = np.concatenate(instants), np.concatenate(published)
    # At the same instant, publications come before receptions.
    for i in np.lexsort((~gives, when)).tolist():
        thread, target, once = rows[i]
        yield SyncEvent(int(when[i]), thread, target, bool(gives[i]), once)


_OF_ITSELF = {schema.SyncKind.thread_begin.name, schema.SyncKind.thread_end.name}
"""Kinds that concern the very thread they are of."""
