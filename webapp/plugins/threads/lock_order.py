"""Finds locks that threads take in opposite orders: if both come at once, neither will go on.

Known from the locks that a thread held as it took another one that was free, so from runs in which
nothing went wrong. Nothing is said where both hold a third lock, or where something other than a
lock keeps the two apart: start and end of a thread, a queue, an event. An attempt that would not
have waited, or not for ever, does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import LOCK_ADDRESS_AGAIN
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.races.races import processes_of
from lanescope.webapp.plugins.races.vector_clocks import Order, order_of
from lanescope.webapp.runs.run import Run

_ACQUIRE, _RELEASE = schema.SyncKind.lock_acquire.name, schema.SyncKind.lock_release.name
_MAX_ROWS = 400_000
"""Acquisitions and releases that are read of a thread."""

_KEPT = 200
"""Instants that are kept of a thread and two locks."""


@dataclass
class _Nested:
    """A thread took one lock while it held another, and perhaps more: the `gates`."""

    thread: str
    gates: frozenset[int]
    instants: list[int] = field(default_factory=list)


_Pairs = dict[tuple[int, int], dict[frozenset[int], _Nested]]


def opposite_orders(run: Run) -> list[Finding]:
    """Returns findings of kind `deadlock`, one per two locks of a process."""
    return [one for rank in run.ranks for one in _of_rank(run, rank)]


@per_rank
def _of_rank(run: Run, rank: int) -> list[Finding]:
    found: list[Finding] = []
    for process in processes_of(run, rank):
        taken = {thread: pairs for thread in process if (pairs := _pairs(run, rank, thread))}
        if len(taken) < 2:
            continue
        order = order_of(run, rank, process, list(taken), by_locks=False)
        other_locks = _addresses_again(run, rank, process)
        first: dict[frozenset[int], Finding] = {}
        for one, other in combinations(taken, 2):
            for locks in taken[one]:
                if other_locks & {0, *locks}:
                    continue
                ours, theirs = taken[one][locks], taken[other].get(locks[::-1], {})
                both = _at_once(order, list(ours.values()), list(theirs.values()))
                if both is not None and frozenset(locks) not in first:
                    first[frozenset(locks)] = _finding(run, rank, both)
        found += first.values()
    return found


def _addresses_again(run: Run, rank: int, process: Sequence[str]) -> set[int]:
    """Addresses that more than one lock of a process had; 0 among them: of any."""
    rows = logged(run, rank, LOCK_ADDRESS_AGAIN)
    return {int(one) for one in rows["value"][rows["thread"].isin([*process])]}


def _pairs(run: Run, rank: int, thread: str) -> _Pairs:
    """By the two locks, the first and the second, where a thread took the second one."""
    columns = ["start_ns", "duration_ns", "kind", "object"]
    table = run.events("sync", rank, thread, columns=columns)
    kinds = table["kind"].cast(pa.string())
    chosen = pc.and_(
        pc.is_in(kinds, pa.array([_ACQUIRE, _RELEASE])), pc.is_valid(table["duration_ns"])
    )
    table = table.filter(chosen).slice(0, _MAX_ROWS)
    acquires = pc.equal(kinds.filter(chosen), _ACQUIRE).to_pylist()
    found: _Pairs = {}
    held: list[int] = []
    rows = zip(
        acquires,
        table["object"].to_pylist(),
        table["start_ns"].to_pylist(),
        table["duration_ns"].to_pylist(),
        strict=False,
    )
    for acquired, lock, instant, waited in rows:
        if not acquired:
            if lock in held:
                held.reverse()
                held.remove(lock)
                held.reverse()
            continue
        for outer in {*held} if lock not in held and not waited else ():
            gates = frozenset(held) - {outer}
            nested = found.setdefault((outer, lock), {}).setdefault(gates, _Nested(thread, gates))
            if len(nested.instants) < _KEPT:
                nested.instants.append(instant)
        held.append(lock)
    return found


def _at_once(
    order: Order, ours: Sequence[_Nested], theirs: Sequence[_Nested]
) -> list[tuple[str, int]] | None:
    """Threads and instants at which two threads might take two locks at once; None: never."""
    for one in ours:
        for other in theirs:
            if one.gates & other.gates:
                continue
            sides = [(order.threads.index(side.thread), side) for side in (one, other)]
            (i, _), (j, _) = sides
            mine, others = (np.array(side.instants, np.int64) for _, side in sides)
            both = order.unordered(i, mine, j, others)
            if both is not None:
                return [(one.thread, int(mine[both[0]])), (other.thread, int(others[both[1]]))]
    return None


def _finding(run: Run, rank: int, both: list[tuple[str, int]]) -> Finding:
    names = {one.thread: one.name for one in run.threads_of(rank)}
    places = [_place(run, rank, thread, instant) for thread, instant in both]
    said = [
        f"{names[thread]}" + (f" near {place}" if place else "")
        for (thread, _), place in zip(both, places, strict=True)
    ]
    thread, instant = max(both, key=lambda one: one[1])
    start, at = min(one[1] for one in both), (thread_lane(rank, thread), instant)
    return Finding(
        kind="deadlock",
        severity="warning",
        confidence="likely",
        title=f"Two locks are taken in opposite orders: {said[0]} takes one of them while it holds "
        f"the other, and {said[1]} does the reverse. When both come at once, each waits for the "
        "other for ever. Take the two in the same order in all threads.",
        rank=rank,
        thread=thread,
        time_ns=start,
        where=places[0] or places[1],
        evidence={
            "threads": [
                {"thread": thread, "name": names[thread], "where": place, "time_ns": instant}
                for (thread, instant), place in zip(both, places, strict=True)
            ]
        },
        link=timeline_address(start, instant, run.duration_ns, at),
    )


_NEAR_NS = 1_000_000_000


def _place(run: Run, rank: int, thread: str, instant: int) -> str | None:
    """The line of the first operator after an instant."""
    window = (instant, instant + _NEAR_NS)
    ops = run.events("op", rank, thread, ["start_ns", "stack"], window)
    ops = ops.filter(pc.and_(pc.greater_equal(ops["start_ns"], instant), pc.is_valid(ops["stack"])))
    return own_place(run, rank, ops["stack"][0].as_py()) if len(ops) else None
