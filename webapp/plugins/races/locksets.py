"""Finds the locks that a thread held at an instant.

Two accesses under a common lock never race: letting go of it orders them. So of two that race, the
locks that each holds show what is missing (Savage et al. 1997: Eraser's locksets): one that only
one side takes is very likely the lock that the other forgot, and two that are not the same protect
nothing.

They say why two accesses race, never whether: threads hand tensors on by queues, events and joins
without any lock, so that an empty intersection alone proves nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_ACQUIRE, _RELEASE = schema.SyncKind.lock_acquire.name, schema.SyncKind.lock_release.name


def held_at(run: Run, rank: int, thread: str, instant: int) -> frozenset[int]:
    """Returns the locks that a thread held at `instant`, ns: acquired last by it, not released.

    By numbers from 0, which mean the same lock for all threads of a process.
    """
    pid = next(t.pid for t in run.threads if t.thread == thread)
    process = tuple(t.thread for t in run.threads_of(rank) if t.pid == pid)
    instants, locks, changes, takers = _taken(run, rank, process)
    count = int(instants.searchsorted(instant, side="right"))
    takes = np.flatnonzero(changes[:count] > 0)
    last = np.full(int(locks.max(initial=-1)) + 1, -1)
    last[locks[takes]] = takers[takes]  # of a lock taken several times, the last one stays
    # A ring may have overwritten an acquire, so that a count falls below zero.
    taken = np.bincount(locks[:count], changes[:count], minlength=len(last)) > 0
    return frozenset(np.flatnonzero(taken & (last == process.index(thread))).tolist())


@lru_cache(maxsize=16)
def _taken(
    run: Run, rank: int, process: tuple[str, ...]
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """When which lock (numbered from 0) was taken (1) or given up (-1), by which of the threads."""
    parts: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
    for position, thread in enumerate(process):
        rows = run.events("sync", rank, thread, ["start_ns", "duration_ns", "kind", "object"])
        kinds = rows["kind"].cast(pa.string())
        wanted = pc.and_(
            pc.is_in(kinds, pa.array([_ACQUIRE, _RELEASE])), pc.is_valid(rows["duration_ns"])
        )
        took = pc.equal(kinds, _ACQUIRE).filter(wanted).to_numpy()
        rows = rows.filter(wanted)
        instants = rows["start_ns"].to_numpy() + rows["duration_ns"].to_numpy() * took
        locks = rows["object"].to_numpy().astype(np.int64)
        parts.append((instants, locks, np.where(took, 1, -1), np.full(len(took), position)))
    instants, objects, changes, takers = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(instants, kind="stable")
    locks = np.unique(objects, return_inverse=True)[1]
    return instants[order], locks[order], changes[order], takers[order]
