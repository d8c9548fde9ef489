"""Which slice of a lane lies within which."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from .spill import UNFINISHED
from .timestamps import I64

DEEPEST = 32_000
"""Levels told apart: the column that holds them has 16 bits."""

_MANY_LEVELS = 200
_CHUNK = 1 << 20
_FOREVER = (1 << 63) - 1


def in_order(start: I64, duration: I64) -> I64:
    """Positions by start, of those that start together the longest first, else as in the file."""
    order = np.argsort(start, kind="stable")
    if (np.diff(start[order]) == 0).any():
        length = np.where(duration == UNFINISHED, _FOREVER, duration)
        order = np.lexsort((-length, start))
    return order


def ends(start: I64, duration: I64) -> I64:
    """When each slice ends; one that is unfinished never does."""
    return np.where(duration == UNFINISHED, _FOREVER, start + duration)


def around(start: I64, until: I64) -> tuple[I64, I64]:
    """Depth of each slice, and the position of the one directly around it, -1: none.

    In the order of `in_order`. A slice lies in another that holds all of it; one that overlaps
    another and is not within it has the same depth, and is drawn below it.
    """
    depths = _open_before(start, until)
    parents = _parents(depths, until)
    return _one_by_one(start, until) if parents is None else (depths, parents)


def spend(own: I64, duration: I64, parents: I64) -> None:
    """Takes the duration of slices, the last ones of `own`, from what their parents have left."""
    inside = np.flatnonzero((parents >= 0) & (duration != UNFINISHED))
    np.subtract.at(own, parents[inside], duration[inside])


def left(own: I64, duration: I64) -> I64:
    """What is left of durations; nothing where children overlap each other and are longer."""
    return np.where(duration == UNFINISHED, UNFINISHED, np.maximum(own, 0))


def _open_before(start: I64, until: I64) -> I64:
    """How many slices began before each, or with it and are longer, and have not ended."""
    lasting = until > start  # one without extent holds nothing
    ends = until[lasting]
    ends.sort()
    found: I64 = np.cumsum(lasting)
    found -= lasting
    found -= np.searchsorted(ends, start, "right")
    return found


def _parents(depths: I64, until: I64) -> I64 | None:
    """The slice around each, -1: none. None where slices overlap without nesting.

    Where all nest, it is the last one before it that is one less deep.
    """
    deepest = int(depths.max(initial=0))
    if deepest > _MANY_LEVELS:
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


def _one_by_one(start: I64, until: I64) -> tuple[I64, I64]:
    """Depths and parents of slices of which some overlap without nesting."""
    count = len(start)
    depths, parents = np.zeros(count, np.int64), np.zeros(count, np.int64)
    ends: list[int] = []  # negated, ascending: slices that are open, the outermost first
    open_rows: list[int] = []
    row = 0
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
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
