"""Computes which slice of a lane is nested in which."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from .spill import UNFINISHED
from .timestamps import Int64Array

MAX_DEPTH = 32_000
"""Deepest level that is stored: the column has 16 bits."""

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
