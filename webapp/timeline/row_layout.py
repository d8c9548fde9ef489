"""Which row of its lane a slice is drawn in."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush

import numpy as np

from lanescope.webapp.runs.types import BoolArray, Int64Array

CHAINS = 64
"""Rows that are found a row at a time, which is fast while few slices overlap at once."""


def sub_rows(start: Int64Array, end: Int64Array) -> Int64Array:
    """Sub-row of each slice, from 0, so that no two slices of a sub-row overlap.

    `start` and `end` are sorted by (start, end). First fit: a slice goes to the lowest sub-row
    whose last slice has ended by its start, so what nests or follows stays in row 0, nothing is
    dropped and the result depends on the slices alone.

    Row 0 of first fit is the chain that begins with the first slice and goes on with the first
    one that starts after its end; row 1 is that chain among the rest, and so on. A chain runs
    from neighbour to neighbour except where a slice overlaps the next one, so only those are
    walked one by one. Where very many overlap at once, all that is left after CHAINS rows is.
    """
    rows = np.zeros(len(start), np.int64)
    left = np.arange(len(start), dtype=np.int64)
    row = 0
    while len(left):
        if row == CHAINS:
            rows[left] = _first_fit(start[left].tolist(), end[left].tolist(), row)
            break
        begins, ends = start[left], end[left]
        overlaps = np.flatnonzero(ends[:-1] > begins[1:])
        if not len(overlaps):
            rows[left] = row
            break
        resume = np.searchsorted(begins, ends[overlaps])
        chosen = _chain(len(left), overlaps.tolist(), resume.tolist())
        rows[left[chosen]] = row
        left = left[~chosen]
        row += 1
    return rows


def _first_fit(start: list[int], end: list[int], row: int) -> list[int]:
    """Rows of the slices, from `row`, one slice at a time."""
    rows: list[int] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end of its last slice, row)
    for low, high in zip(start, end, strict=True):
        while busy and busy[0][0] <= low:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, row)
            row += 1
        rows.append(heappop(free))
        heappush(busy, (high, rows[-1]))
    return rows


def _chain(size: int, overlaps: list[int], resume: list[int]) -> BoolArray:
    """Members of the chain, given the slices that overlap their successor and where it goes on."""
    change = np.zeros(size + 1, np.int64)
    here, turn = 0, 0
    while here < size:
        change[here] += 1
        turn = bisect_left(overlaps, here, turn)
        if turn == len(overlaps):
            change[size] -= 1
            break
        change[overlaps[turn] + 1] -= 1
        here = resume[turn]
    return np.cumsum(change[:-1]) > 0
