"""Which slice of a lane lies within which."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from .instants import I64
from .rows import UNFINISHED

DEEPEST = 32_000
"""Levels told apart: the column that holds them has 16 bits."""

_CHUNK = 1 << 20
_FOREVER = (1 << 63) - 1


def in_order(start: I64, duration: I64) -> I64:
    """Positions by start, of those that start together the longest first, else as in the file."""
    order = np.argsort(start, kind="stable")
    if (np.diff(start[order]) == 0).any():
        length = np.where(duration == UNFINISHED, _FOREVER, duration)
        order = np.lexsort((-length, start))
    return order


def nested(start: I64, duration: I64) -> tuple[I64, I64]:
    """Depth of each slice, and its duration less that of its direct children (0 where these
    overlap each other and are longer together).

    `start` and `duration` as `in_order` puts them. A slice lies in another that holds all of it;
    one that overlaps another and is not within it has the same depth, and is drawn below it.
    """
    count = len(start)
    depths, own = np.zeros(count, np.int64), duration.copy()
    ends: list[int] = []  # negated, ascending: slices that are open, the outermost first
    open_rows: list[int] = []
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        lengths = duration[part]
        until = np.where(lengths == UNFINISHED, _FOREVER, start[part] + lengths)
        found: list[int] = []
        parents: list[int] = []
        row = first
        for low, high in zip(start[part].tolist(), until.tolist(), strict=True):
            while ends and -ends[-1] <= low:
                ends.pop()
                open_rows.pop()
            depth = len(ends)
            if ends and -ends[-1] < high:  # not within the innermost one
                depth = bisect_left(ends, 1 - high)
                ends.insert(depth, -high)
                open_rows.insert(depth, row)
            else:
                ends.append(-high)
                open_rows.append(row)
            found.append(depth)
            parents.append(open_rows[depth - 1] if depth else -1)
            row += 1
        depths[part] = found
        parent = np.array(parents, np.int64)
        inside = np.flatnonzero((parent >= 0) & (lengths != UNFINISHED))
        np.subtract.at(own, parent[inside], lengths[inside])
    own = np.where(duration == UNFINISHED, UNFINISHED, np.maximum(own, 0))
    return np.minimum(depths, DEEPEST), own
