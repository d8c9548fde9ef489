"""Computes which slice of a lane is nested in which, in chunks of time.

Chunks keep memory from growing with the lane. A slice that is open at the end of a chunk moves to
the next one, until that in which it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..format.array_types import Int64Array
from .import_limits import ImportRejected
from .spill import UNFINISHED, StructArray, gather

MAX_DEPTH = 32_000
"""Deepest level that is stored: the column has 16 bits."""

CHUNK_ROWS = 1 << 20
"""Approximate slices of a chunk; each takes about 120 bytes while it is processed."""

_MAX_OPEN = 1 << 20
"""Slices open, or starting, at one instant."""

_SAMPLE = 1 << 16

_MAX_LEVELS = 200
_BATCH_ROWS = 1 << 20
_FOREVER = (1 << 63) - 1


def nesting_order(start: Int64Array, duration: Int64Array) -> Int64Array:
    """Returns positions by start; of equal starts the longest first, else in the file's order."""
    order = np.argsort(start, kind="stable")
    if (np.diff(start[order]) == 0).any():
        length = np.where(duration == UNFINISHED, _FOREVER, duration)
        order = np.lexsort((-length, start))
    return order


def end_times(start: Int64Array, duration: Int64Array) -> Int64Array:
    """Returns the end of each slice in ns; an unfinished one ends at the largest int64."""
    return np.where(duration == UNFINISHED, _FOREVER, start + duration)


def nesting_of(start: Int64Array, until: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the depth of each slice, and the position of its parent, -1: none.

    Slices are in the order of `nesting_order`. A parent contains all of the slice; a slice that
    overlaps another without being inside has the same depth.
    """
    depths = _open_before(start, until)
    parents = _parents(depths, until)
    return _one_by_one(start, until) if parents is None else (depths, parents)


def subtract_children(own: Int64Array, duration: Int64Array, parents: Int64Array) -> None:
    """Subtracts durations from the parents' entries of `own`, in place.

    `duration` and `parents` are those of the last slices of `own`.
    """
    inside = np.flatnonzero((parents >= 0) & (duration != UNFINISHED))
    np.subtract.at(own, parents[inside], duration[inside])


def remaining(own: Int64Array, duration: Int64Array) -> Int64Array:
    """Returns self times in ns, at least 0: children may overlap and be longer than the parent."""
    return np.where(duration == UNFINISHED, UNFINISHED, np.maximum(own, 0))


def _open_before(start: Int64Array, until: Int64Array) -> Int64Array:
    """Returns how many slices are open when each one starts; equal starts count if longer."""
    lasting = until > start  # a slice of length 0 has no children
    ends = until[lasting]
    ends.sort()
    found: Int64Array = np.cumsum(lasting)
    found -= lasting
    found -= np.searchsorted(ends, start, "right")
    return found


def _parents(depths: Int64Array, until: Int64Array) -> Int64Array | None:
    """Returns the parent of each slice, -1: none; None where slices overlap without nesting.

    Where all nest, the parent is the last earlier slice of the level above.
    """
    deepest = int(depths.max(initial=0))
    if deepest > _MAX_LEVELS:
        return None
    parents = np.full(len(depths), -1, np.int64)
    above = np.flatnonzero(depths == 0)
    for level in range(1, deepest + 1):
        mine = np.flatnonzero(depths == level)
        place = np.searchsorted(above, mine) - 1
        if (place < 0).any():
            return None
        parents[mine] = above[place]
        if (until[parents[mine]] < until[mine]).any():
            return None
        above = mine
    return parents


def _one_by_one(start: Int64Array, until: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns depths and parents where some slices overlap without nesting."""
    count = len(start)
    depths, parents = np.zeros(count, np.int64), np.zeros(count, np.int64)
    ends: list[int] = []  # negated ends of open slices, ascending: the outermost first
    open_rows: list[int] = []
    row = 0
    for first in range(0, count, _BATCH_ROWS):
        part = slice(first, min(first + _BATCH_ROWS, count))
        found: list[int] = []
        around: list[int] = []
        for low, high in zip(start[part].tolist(), until[part].tolist(), strict=True):
            while ends and -ends[-1] <= low:
                ends.pop()
                open_rows.pop()
            depth = len(ends)
            if ends and -ends[-1] < high:  # not within the innermost one
                depth = bisect_left(ends, 1 - high)
            ends.insert(depth, -high)
            open_rows.insert(depth, row)
            found.append(depth)
            around.append(open_rows[depth - 1] if depth else -1)
            row += 1
        depths[part], parents[part] = found, around
    return depths, parents


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


def time_chunks_of(rows: StructArray, which: NDArray[np.uint32], path: Path) -> Iterator[TimeChunk]:
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


def batches_by_start(rows: StructArray, which: NDArray[np.uint32]) -> Iterator[NDArray[np.uint32]]:
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


def _with(carried: _Open, rows: StructArray, mine: NDArray[np.uint32], begins: Int64Array) -> _Open:
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
