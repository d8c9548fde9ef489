"""Level of detail: what a row of slices looks like when a bucket of 2^level ns is one pixel.

A row is a pair of sorted int64 arrays `start`, `end` in which no slice overlaps the next
(`end[i] <= start[i + 1]`); slices are half-open, [start, end). At level L the axis is cut into
buckets of 2^L ns, and 1024 buckets are a tile. Within a tile

- a *wide* slice lasts at least one bucket. It is reported itself, with exact times;
- the others are *short*. Each bucket tells how many of them begin in it, how many nanoseconds of
  it they cover (exact, cut at the bucket's edges) and which of those that touch it is the longest.

Nothing is sampled: a slice of 1 ns among millions is in a bucket of every level.

Since slices of a row do not overlap, only the last one that begins in a bucket can be wide or
reach past the bucket's edge. All of a bucket follows from its first and last slice, the time
covered by all but the last, and the longest of all but the last (`Buckets`), and two neighbours
merge without looking at the slices between. So a row is read once, each level costs no more than
the buckets it has, and a tile costs no more than its pixels or RAW_LIMIT slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

MAX_LEVEL = 40
"""Coarsest level: a tile of 2^50 ns, 13 days."""

TILE_BITS = 10
TILE_BUCKETS = 1 << TILE_BITS

RAW_LIMIT = 4096
"""Slices per tile up to which it is made from the slices when asked for, in some 0.1 ms. Tiles
with more are made ahead (`pyramid`): they hold at most 2049 entries, so each level made ahead has
at most half as many entries as the row has slices, and in practice far fewer."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """The buckets of one row and level in which slices begin, in order of time."""

    number: I64  # start >> level
    first: I64  # position in the row of the first slice that begins in it
    last: I64  # and of the last
    inner: I64  # ns covered by all but the last; these lie within the bucket
    longest: I64  # position of the longest of all but the last (the first of equals); -1: none

    def part(self, low: int, high: int) -> Buckets:
        """The buckets `low:high`."""
        cut = slice(low, high)
        return Buckets(
            self.number[cut], self.first[cut], self.last[cut], self.inner[cut], self.longest[cut]
        )


@dataclass(frozen=True, eq=False)
class Summary:
    """One row within one tile."""

    wide: I64  # positions of wide slices that touch the tile
    bucket: I64  # 0..1023 within the tile, ascending: buckets touched by short slices
    covered: I64  # ns of the bucket that short slices cover
    count: I64  # short slices that begin in it; 0 where only a tail reaches in
    longest: I64  # position of the longest short slice that touches it (the first of equals)

    def __bool__(self) -> bool:
        return bool(len(self.wide) or len(self.bucket))


def buckets(start: I64, end: I64, level: int, begin: int = 0, stop: int | None = None) -> Buckets:
    """The buckets of the slices `begin:stop` of a row, from the slices. O(stop - begin)."""
    start = start[begin:stop]
    if not len(start):
        none = np.empty(0, np.int64)
        return Buckets(none, none, none, none, none)
    number = start >> level
    first = np.concatenate(([0], np.flatnonzero(number[1:] != number[:-1]) + 1))
    last = np.concatenate((first[1:], [len(start)])) - 1
    length = end[begin:stop] - start
    total = np.cumsum(length)
    inner = (total[last] - length[last]) - (total[first] - length[first])
    length[last] = -1  # "all but the last"
    most = np.maximum.reduceat(length, first)
    at = np.flatnonzero(length == np.repeat(most, last - first + 1))
    longest = at[np.searchsorted(at, first)]
    longest = np.where(most < 0, -1, longest + begin)
    return Buckets(number[first], first + begin, last + begin, inner, longest)


def coarser(start: I64, end: I64, fine: Buckets) -> Buckets:
    """The buckets one level up: each is one of the finer ones, or two merged."""
    number = fine.number >> 1
    keep = np.flatnonzero(np.concatenate(([True], number[1:] != number[:-1])))
    other = np.concatenate((keep[1:], [len(number)])) - 1  # equals keep where there is no partner
    pair = np.flatnonzero(other != keep)
    left, right = keep[pair], other[pair]
    inner, longest = fine.inner[keep], fine.longest[keep]
    # Once merged, the left one's last slice is one of "all but the last".
    middle = fine.last[left]
    inner[pair] += end[middle] - start[middle] + fine.inner[right]
    best = fine.longest[left]
    most = _length(start, end, best)
    for candidate in (middle, fine.longest[right]):
        length = _length(start, end, candidate)
        best = np.where(length > most, candidate, best)
        most = np.maximum(length, most)
    longest[pair] = best
    return Buckets(number[keep], fine.first[keep], fine.last[other], inner, longest)


def summary(start: I64, end: I64, row: Buckets, level: int, index: int) -> Summary:
    """The tile `index` of `level`, from that level's buckets.

    `row` has to hold the tile's buckets and the one before them; more does no harm.
    """
    begins, ends = start[row.last], end[row.last]
    length = ends - begins
    wide = length >= 1 << level
    edge = (row.number + 1) << level
    covered = row.inner + np.where(wide, 0, np.minimum(ends, edge) - begins)
    count = row.last - row.first + 1 - wide
    most = _length(start, end, row.longest)
    better = ~wide & (length > most)
    longest = np.where(better, row.last, row.longest)
    most = np.where(better, length, most)
    present = count > 0
    number = row.number

    # The tail of a bucket's last short slice lies in the very next bucket.
    tail = np.flatnonzero(~wide & (ends > edge))
    if len(tail):
        spill = ends[tail] - edge[tail]
        target = number[tail] + 1
        after = np.minimum(tail + 1, len(number) - 1)
        known = number[after] == target
        to, of = after[known], tail[known]
        covered[to] += spill[known]
        longest[to] = np.where(length[of] >= most[to], row.last[of], longest[to])
        present[to] = True
        alone = tail[~known]
        present = np.concatenate((present, np.ones(len(alone), np.bool_)))
        number = np.concatenate((number, target[~known]))
        covered = np.concatenate((covered, spill[~known]))
        count = np.concatenate((count, np.zeros(len(alone), np.int64)))
        longest = np.concatenate((longest, row.last[alone]))

    origin = index << TILE_BITS
    inside = np.flatnonzero(present & (number >= origin) & (number < origin + TILE_BUCKETS))
    if len(tail):
        inside = inside[np.argsort(number[inside], kind="stable")]
    touching = wide & (begins < (origin + TILE_BUCKETS) << level) & (ends > origin << level)
    return Summary(
        row.last[touching],
        number[inside] - origin,
        covered[inside],
        count[inside],
        longest[inside],
    )


def window(start: I64, end: I64, level: int, index: int) -> Summary:
    """The tile `index` of `level`, from the slices. O(log n + slices that begin in the tile)."""
    span = TILE_BITS + level
    begin, stop = np.searchsorted(start, (index << span, (index + 1) << span))
    # Only the slice just before can reach into the tile.
    row = buckets(start, end, level, max(int(begin) - 1, 0), int(stop))
    return summary(start, end, row, level, index)


def pyramid(start: I64, end: I64) -> Iterator[tuple[int, int, Summary]]:
    """All tiles of a row that hold more than RAW_LIMIT slices: (level, index, summary).

    Ordered by level, then index. `window` gives the same for each; these are the ones for which
    it would take long.
    """
    level = _finest(start)
    if level > MAX_LEVEL:
        return
    row = buckets(start, end, level)
    while True:
        for index, low, high in _crowded(row.number, row.first, len(start)):
            near = row.part(max(low - 1, 0), high)
            yield level, index, summary(start, end, near, level, index)
        if level == MAX_LEVEL:
            return
        row = coarser(start, end, row)
        level += 1


def _finest(start: I64) -> int:
    """The finest level at which a tile can hold more than RAW_LIMIT of these instants."""
    if len(start) <= RAW_LIMIT:
        return MAX_LEVEL + 1
    # The tightest RAW_LIMIT + 1 neighbours; a tile that holds them is longer than their span.
    span = int((start[RAW_LIMIT:] - start[:-RAW_LIMIT]).min())
    return max(0, span.bit_length() - TILE_BITS)


def _crowded(number: I64, first: I64, total: int) -> list[tuple[int, int, int]]:
    """Tiles with more than RAW_LIMIT slices: (index, range of their buckets)."""
    tile = number >> TILE_BITS
    low = np.concatenate(([0], np.flatnonzero(tile[1:] != tile[:-1]) + 1))
    high = np.concatenate((low[1:], [len(tile)]))
    begin = first[low]
    slices = np.concatenate((begin[1:], [total])) - begin
    crowded = np.flatnonzero(slices > RAW_LIMIT)
    return list(
        zip(tile[low[crowded]].tolist(), low[crowded].tolist(), high[crowded].tolist(), strict=True)
    )


def _length(start: I64, end: I64, position: I64) -> I64:
    """Lengths of the slices at these positions, -1 for position -1."""
    return np.where(position < 0, np.int64(-1), end[position] - start[position])
