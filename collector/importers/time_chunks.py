"""Splits the slices of a lane into chunks of time, so that memory does not grow with the lane.

A slice that is open at the end of a chunk moves to the next one, until that in which it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .limits import ImportRejected
from .nesting import MAX_DEPTH, end_times, nesting_of, nesting_order, remaining, subtract_children
from .spill import Rows, gather
from .timestamps import Int64Array

CHUNK_ROWS = 1 << 20
"""Approximate slices of a chunk; each takes about 120 bytes while it is processed."""

_MAX_OPEN = 1 << 20
"""Slices open, or starting, at one instant."""

_SAMPLE = 1 << 16
_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class TimeChunk:
    """Slices by start: their rows, depths, and self times in ns."""

    where: NDArray[np.uint32]
    depth: Int64Array
    own: Int64Array


@dataclass(frozen=True)
class _Open:
    where: NDArray[np.uint32]
    start: Int64Array
    duration: Int64Array
    depth: Int64Array
    own: Int64Array

    def chosen(self, which: NDArray[np.bool_]) -> _Open:
        return _Open(
            self.where[which],
            self.start[which],
            self.duration[which],
            self.depth[which],
            self.own[which],
        )


def time_chunks_of(rows: Rows, which: NDArray[np.uint32], path: Path) -> Iterator[TimeChunk]:
    """Yields the slices `rows[which]` of one lane with their nesting.

    Raises ImportRejected where more than `_MAX_OPEN` are open at once.
    """
    start = gather(rows, "start", which)
    nothing = np.empty(0, np.int64)
    carried = _Open(np.empty(0, np.uint32), nothing, nothing, nothing, nothing)
    edges = _edges(start)
    for low, high in pairwise(edges):
        here = _within(start, low, high)
        mine, begins = which[here], start[here]
        if len(mine) + len(carried.where) > _MAX_OPEN + CHUNK_ROWS:
            raise ImportRejected(
                f"{path}: has more than {_MAX_OPEN} slices at one instant of a thread, expected a "
                "trace of a program"
            )
        found = _with(carried, rows, mine, begins)
        over = end_times(found.start, found.duration) <= high
        if high == edges[-1]:
            over[:] = True
        closed, carried = found.chosen(over), found.chosen(~over)
        yield TimeChunk(
            closed.where,
            np.minimum(closed.depth, MAX_DEPTH),
            remaining(closed.own, closed.duration),
        )


def batches_by_start(rows: Rows, which: NDArray[np.uint32]) -> Iterator[NDArray[np.uint32]]:
    """Yields `which` by start in batches; equal starts keep the file's order."""
    start = gather(rows, "start", which)
    for low, high in pairwise(_edges(start)):
        if high == low + 1:  # may be the whole lane, and is in order already
            for first in range(0, len(which), CHUNK_ROWS):
                part = slice(first, first + CHUNK_ROWS)
                yield which[part][start[part] == low]
        else:
            here = _within(start, low, high)
            yield which[here[np.argsort(start[here], kind="stable")]]


def _within(start: Int64Array, low: int, high: int) -> Int64Array:
    """Returns the positions of instants in [low, high)."""
    found = []
    for first in range(0, len(start), _BATCH_ROWS):
        part = start[first : first + _BATCH_ROWS]
        found.append(np.flatnonzero((part >= low) & (part < high)) + first)
    return np.concatenate(found)


def _with(carried: _Open, rows: Rows, mine: NDArray[np.uint32], begins: Int64Array) -> _Open:
    """Returns the open slices and the new ones, nested."""
    duration = gather(rows, "duration", mine)
    order = nesting_order(begins, duration)
    duration = duration[order]
    start = np.concatenate([carried.start, begins[order]])
    every = np.concatenate([carried.duration, duration])
    own = np.concatenate([carried.own, duration])
    known = len(carried.where)
    depth, parents = nesting_of(start, end_times(start, every))
    subtract_children(own, duration, parents[known:])
    depth[:known] = carried.depth
    return _Open(np.concatenate([carried.where, mine[order]]), start, every, depth, own)


def _edges(start: Int64Array) -> list[int]:
    """Returns the starts of chunks of about CHUNK_ROWS slices, and the end of the last."""
    if not len(start):
        return []
    edges = [int(start.min()), int(start.max()) + 1]
    if len(start) > CHUNK_ROWS:
        sample = np.sort(start[:: len(start) // _SAMPLE + 1])
        step = max(1, len(sample) * CHUNK_ROWS // len(start))
        chosen = sample[step::step]
        crowded = chosen[1:][np.diff(chosen) == 0]  # instants of many more than CHUNK_ROWS
        edges = sorted({*edges, *chosen.tolist(), *(crowded + 1).tolist()})
    return edges
