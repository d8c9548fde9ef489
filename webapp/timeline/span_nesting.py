"""Slices separated by how deep they nest, stretch by stretch as they are read: the rows of a lane.

A stretch is as long as the processor's cache can hold; only the columns that the
index keeps remain. Taking a lane of a million slices apart in one go has every step fetch memory
again, which takes longer than the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.types import BoolArray, Int64Array, UInt8Array, UInt32Array
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED

MAX_SIMPLE_DEPTHS = 16
"""Depths up to which a pass for each is quicker than sorting by depth."""


class SpanColumns(NamedTuple):
    """Some slices."""

    start: Int64Array
    end: Int64Array
    name: UInt32Array
    style: UInt8Array
    source: UInt32Array  # position in the table they come from

    def take(self, which: Int64Array) -> SpanColumns:
        """Returns some of them."""
        start, end, name, style, source = self
        return SpanColumns(
            start.take(which),
            end.take(which),
            name.take(which),
            style.take(which),
            source.take(which),
        )

    def between(self, low: int, high: int) -> SpanColumns:
        """Returns those at low up to high."""
        start, end, name, style, source = self
        return SpanColumns(
            start[low:high], end[low:high], name[low:high], style[low:high], source[low:high]
        )

    @staticmethod
    def joined(stretches: list[SpanColumns]) -> SpanColumns:
        """Returns slices of several stretches, one after another."""
        if len(stretches) == 1:
            return stretches[0]
        return SpanColumns(*(np.concatenate(column) for column in zip(*stretches, strict=True)))


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive rows of a lane whose slices come from one table.

    Stretches follow one another: their columns are put together once, with the lane's.
    """

    table: str
    stretches: list[SpanColumns]
    sizes: list[int]  # slices per row

    def rows(self) -> Iterator[SpanColumns]:
        """Yields the slices row by row."""
        if self.sizes:
            found = SpanColumns.joined(self.stretches)
            for low, high in pairwise(accumulate(self.sizes, initial=0)):
                yield found.between(low, high)


@dataclass
class _Depth:
    stretches: list[SpanColumns] = field(default_factory=list)
    reach: int = -1  # end of the last slice
    apart: bool = True  # sorted, and none overlaps the next

    def add(self, found: SpanColumns) -> None:
        start, end = found.start, found.end
        self.apart = (
            self.apart and self.reach <= int(start[0]) and bool((end[:-1] <= start[1:]).all())
        )
        self.reach = int(end[-1])
        self.stretches.append(found)


class Depths:
    """The slices that a lane has of one table."""

    def __init__(self) -> None:
        self._found: dict[int, _Depth] = {}

    def add(self, found: SpanColumns, depth: npt.NDArray[np.int16]) -> None:
        """Adds the next ones, and the depth of each."""
        for level, part in _by_depth(depth):
            self._found.setdefault(level, _Depth()).add(found.take(part))

    def inherit(self) -> None:
        """Gives slices without a style, that of other ops, the one of the slice around them."""
        for level in sorted(self._found):
            mine, above = self._found[level], self._found.get(level - 1)
            if above is None or all(styled(one.style).all() for one in mine.stretches):
                continue
            found, around = SpanColumns.joined(mine.stretches), SpanColumns.joined(above.stretches)
            bare = np.flatnonzero(styled(found.style) == 0)
            parent = enclosing(around.start, around.end, found.start.take(bare))
            found.style[bare] |= np.where(parent < 0, 0, styled(around.style)[parent])
            mine.stretches, above.stretches = [found], [around]

    def piece(self, table: str) -> Piece:
        """Returns one row per depth that occurs, the outermost first, each followed by its
        sub-rows."""
        stretches: list[SpanColumns] = []
        sizes: list[int] = []
        for level in sorted(self._found):
            mine = self._found[level]
            if mine.apart:
                stretches += mine.stretches
                sizes.append(sum(len(one.start) for one in mine.stretches))
            else:
                found = SpanColumns.joined(mine.stretches)
                order, counts = _stack(found.start, found.end)
                stretches.append(found.take(order))
                sizes += counts
        return Piece(table, stretches, sizes)


def styled(style: UInt8Array) -> UInt8Array:
    """Returns the styles without the mark of what had not ended."""
    return style & np.uint8(~STYLE_UNFINISHED & 0xFF)


def _by_depth(depth: npt.NDArray[np.int16]) -> Iterator[tuple[int, Int64Array]]:
    """Each depth that occurs, the outermost first, and the positions of its slices."""
    if not len(depth):
        return
    least, most = int(depth.min()), int(depth.max())
    if most - least < MAX_SIMPLE_DEPTHS:
        for level in range(least, most + 1):
            part = np.flatnonzero(depth == level)
            if len(part):
                yield level, part
    else:
        order = np.argsort(depth, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
            yield int(depth[part[0]]), part


def _stack(start: Int64Array, end: Int64Array) -> tuple[Int64Array, list[int]]:
    """Order of the slices of one depth, sub-row by sub-row, and the slices per sub-row."""
    order = np.lexsort((end, start))
    rows = sub_rows(start[order], end[order])
    return order[np.argsort(rows, kind="stable")], np.bincount(rows).tolist()


CHAINS = 64
"""Rows that are found a row at a time, which is fast while few slices overlap at once."""


def sub_rows(start: Int64Array, end: Int64Array) -> Int64Array:
    """Returns Sub-row of each slice, from 0, so that no two slices of a sub-row overlap.

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
