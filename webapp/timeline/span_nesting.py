"""Slices told apart by how deep they nest, stretch by stretch as they are read: the rows of a lane.

A stretch is as long as the processor's cache can hold; what is left of it are the columns that the
index keeps. Taking a lane of a million slices apart in one go has every step fetch memory anew,
which takes longer than the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.types import Int64Array, UInt8Array, UInt32Array
from lanescope.webapp.timeline.row_layout import sub_rows
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED

FEW_DEPTHS = 16
"""Depths up to which a pass for each is quicker than sorting by depth."""


class Columns(NamedTuple):
    """Some slices."""

    start: Int64Array
    end: Int64Array
    name: UInt32Array
    style: UInt8Array
    source: UInt32Array  # position in the table they come from

    def take(self, which: Int64Array) -> Columns:
        """Some of them."""
        start, end, name, style, source = self
        return Columns(
            start.take(which), end.take(which), name.take(which), style.take(which),
            source.take(which),
        )  # fmt: skip

    def between(self, low: int, high: int) -> Columns:
        """Those at low up to high."""
        start, end, name, style, source = self
        return Columns(
            start[low:high], end[low:high], name[low:high], style[low:high], source[low:high]
        )

    @staticmethod
    def joined(stretches: list[Columns]) -> Columns:
        """Slices of several stretches, one after another."""
        if len(stretches) == 1:
            return stretches[0]
        return Columns(*(np.concatenate(column) for column in zip(*stretches, strict=True)))


@dataclass(frozen=True, eq=False)
class Piece:
    """Consecutive rows of a lane whose slices come from one table.

    Stretches follow one another: their columns are put together once, with the lane's.
    """

    table: str
    stretches: list[Columns]
    sizes: list[int]  # slices per row

    def rows(self) -> Iterator[Columns]:
        """The slices row by row."""
        if self.sizes:
            found = Columns.joined(self.stretches)
            for low, high in pairwise(accumulate(self.sizes, initial=0)):
                yield found.between(low, high)


@dataclass
class _Depth:
    stretches: list[Columns] = field(default_factory=list)
    reach: int = -1  # end of the last slice
    apart: bool = True  # sorted, and none overlaps the next

    def add(self, found: Columns) -> None:
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

    def add(self, found: Columns, depth: npt.NDArray[np.int16]) -> None:
        """The next ones, and the depth of each."""
        for level, part in _by_depth(depth):
            self._found.setdefault(level, _Depth()).add(found.take(part))

    def inherit(self) -> None:
        """Slices without a style, the one of other ops, take that of the slice around them."""
        for level in sorted(self._found):
            mine, above = self._found[level], self._found.get(level - 1)
            if above is None or all(styled(one.style).all() for one in mine.stretches):
                continue
            found, around = Columns.joined(mine.stretches), Columns.joined(above.stretches)
            bare = np.flatnonzero(styled(found.style) == 0)
            parent = enclosing(around.start, around.end, found.start.take(bare))
            found.style[bare] |= np.where(parent < 0, 0, styled(around.style)[parent])
            mine.stretches, above.stretches = [found], [around]

    def piece(self, table: str) -> Piece:
        """One row per depth that occurs, the outermost first, each followed by its sub-rows."""
        stretches: list[Columns] = []
        sizes: list[int] = []
        for level in sorted(self._found):
            mine = self._found[level]
            if mine.apart:
                stretches += mine.stretches
                sizes.append(sum(len(one.start) for one in mine.stretches))
            else:
                found = Columns.joined(mine.stretches)
                order, counts = _stack(found.start, found.end)
                stretches.append(found.take(order))
                sizes += counts
        return Piece(table, stretches, sizes)


def styled(style: UInt8Array) -> UInt8Array:
    """The styles without the mark of what had not ended."""
    return style & np.uint8(~STYLE_UNFINISHED & 0xFF)


def _by_depth(depth: npt.NDArray[np.int16]) -> Iterator[tuple[int, Int64Array]]:
    """Each depth that occurs, the outermost first, and the positions of its slices."""
    if not len(depth):
        return
    least, most = int(depth.min()), int(depth.max())
    if most - least < FEW_DEPTHS:
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
