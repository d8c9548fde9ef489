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

Several rows are answered in one pass: their buckets get numbers of their own, far enough apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

MAX_LEVEL = 40
"""Coarsest level: a tile of 2^50 ns, 13 days."""

TILE_BITS = 10
TILE_BUCKETS = 1 << TILE_BITS

RAW_LIMIT = 4096
"""Slices per tile up to which it is made from the slices when asked for. Tiles with more are made
ahead (`pyramid`): they hold at most 2049 entries, so a level made ahead has at most half as many
entries as the row has slices, and in practice all levels together have about a fifth."""


PIECE = 1 << 15
"""Slices that are looked at in one go while tiles are made ahead."""

EARLY_BITS = 22
"""`buckets` takes at most 2^22 slices at once: a length and a position share 63 bits."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """Buckets of one level in which slices begin, in order of time; of one row or of several."""

    number: I64  # ascending; next to each other in time: numbers that differ by one
    first: I64  # position of the first slice that begins in it
    last: I64  # and of the last
    begin: I64  # extent of the last: looking it up anew at every level takes twice as long
    end: I64
    inner: I64  # ns covered by all but the last; these lie within the bucket
    most: I64  # length of the longest of all but the last; -1: none
    longest: I64  # position of it (the first of equals); anything where there is none

    def take(self, which: I64) -> Buckets:
        """Some of the buckets."""
        return Buckets(*(column.take(which) for column in self._columns()))

    def moved(self, by: int) -> Buckets:
        """The same buckets where slices are counted from another position."""
        return replace(self, first=self.first + by, last=self.last + by, longest=self.longest + by)

    @staticmethod
    def joined(parts: Sequence[Buckets]) -> Buckets:
        """Buckets of several stretches, one after another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part._columns() for part in parts), strict=True)
        return Buckets(*(np.concatenate(column) for column in columns))

    def _columns(self) -> tuple[I64, ...]:
        return (
            self.number, self.first, self.last, self.begin,
            self.end, self.inner, self.most, self.longest,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of one level, one after another.

    Tile k has the entries `wide_at[k]:wide_at[k + 1]` and `dense_at[k]:dense_at[k + 1]`.
    """

    wide: I64  # positions of the wide slices that touch the tile, in order of time
    wide_at: I64
    bucket: I64  # 0..1023 within the tile, ascending: buckets touched by short slices
    covered: I64  # ns of the bucket that short slices cover
    count: I64  # short slices that begin in it; 0 where only a tail reaches in
    longest: I64  # position of the longest short slice that touches it (the first of equals)
    dense_at: I64


@dataclass(frozen=True, eq=False)
class Level:
    """Crowded tiles of one level: tile i is `index[i]` of row `row[i]`, by row, then index."""

    level: int
    row: I64
    index: I64
    tiles: Tiles


def buckets(start: I64, end: I64, number: I64) -> Buckets:
    """The buckets of slices, given each slice's bucket number (ascending). O(slices)."""
    if not len(start):
        none = np.empty(0, np.int64)
        return Buckets(none, none, none, none, none, none, none, none)
    first = runs(number)
    last = np.concatenate((first[1:], [len(start)])) - 1
    length = end - start
    total = np.cumsum(length)
    inner = total.take(last) - length.take(last) - total.take(first) + length.take(first)
    # The greatest of (length, how early) in one number: all but the last lie within their bucket,
    # so their lengths stay below 2^MAX_LEVEL, and the earlier of equals is the greater.
    length <<= EARLY_BITS
    length |= _falling(len(start))
    length[last] = -1  # "all but the last"
    most = np.maximum.reduceat(length, first)
    longest = len(start) - 1 - (most & ((1 << EARLY_BITS) - 1))
    return Buckets(
        number.take(first),
        first,
        last,
        start.take(last),
        end.take(last),
        inner,
        most >> EARLY_BITS,
        longest,
    )


_FALLING = np.arange(PIECE - 1, -1, -1)


def _falling(count: int) -> I64:
    """count - 1 down to 0."""
    some = len(_FALLING)
    return _FALLING[some - count :] if count <= some else np.arange(count - 1, -1, -1)


def coarser(fine: Buckets) -> Buckets:
    """The buckets one level up: each is one of the finer ones, or two merged."""
    number = fine.number >> 1
    keep = runs(number)
    other = np.concatenate((keep[1:], [len(number)])) - 1  # equals keep where there is no partner
    found = Buckets(
        number.take(keep),
        fine.first.take(keep),
        fine.last.take(other),
        fine.begin.take(other),
        fine.end.take(other),
        fine.inner.take(keep),
        fine.most.take(keep),
        fine.longest.take(keep),
    )
    pair = np.flatnonzero(other != keep)
    left = keep.take(pair)
    right = left + 1
    # Once merged, the left one's last slice is one of "all but the last".
    middle = fine.end.take(left) - fine.begin.take(left)
    found.inner[pair] += middle + fine.inner.take(right)
    most, longest = fine.most.take(left), fine.longest.take(left)
    for length, position in (
        (middle, fine.last.take(left)),
        (fine.most.take(right), fine.longest.take(right)),
    ):
        longest = np.where(length > most, position, longest)
        most = np.maximum(length, most)
    found.most[pair] = most
    found.longest[pair] = longest
    return found


def tiles(
    level: int, found: Buckets, origin: I64, begin: I64, floor: I64, size: int = TILE_BUCKETS
) -> Tiles:
    """Tiles, or parts of them: the `size` buckets of tile k are numbered from `origin[k]` and begin
    at `begin[k]` ns.

    `found` holds at least the tiles' buckets and the one before each, if its row has one. The row
    of tile k begins at position `floor[k]`. Origins ascend.
    """
    length = found.end - found.begin
    short = length < 1 << level
    edge = (found.begin | ((1 << level) - 1)) + 1
    number = found.number
    covered = (np.minimum(found.end, edge) - found.begin) * short + found.inner
    count = found.last - found.first + short
    better = short & (length > found.most)
    longest = np.where(better, found.last, found.longest)
    present = count > 0

    # The tail of a bucket's last short slice lies in the very next bucket.
    tail = np.flatnonzero(short & (found.end > edge))
    beyond = found.end.take(tail) - edge.take(tail)
    target = number.take(tail) + 1
    known = number.take(tail + 1, mode="clip") == target
    of = tail[known]
    to = of + 1
    covered[to] += beyond[known]
    most = np.where(better, length, found.most).take(to)
    longest[to] = np.where(length.take(of) >= most, found.last.take(of), longest.take(to))
    present[to] = True
    dense = np.flatnonzero(present)
    alone = ~known
    if alone.any():
        added, of = len(number) + np.arange(int(alone.sum())), tail[alone]
        number = np.concatenate((number, target[alone]))
        covered = np.concatenate((covered, beyond[alone]))
        count = np.concatenate((count, np.zeros(len(of), np.int64)))
        longest = np.concatenate((longest, found.last[of]))
        # Each belongs right after the bucket that its slice begins in.
        dense = np.insert(dense, dense.searchsorted(of, side="right"), added)
    numbers = number.take(dense)
    low, high = numbers.searchsorted((origin, origin + size))
    if (high - low).sum() < len(dense):
        inside = ranges(low, high)
        dense, numbers = dense.take(inside), numbers.take(inside)

    wides = np.flatnonzero(~short)
    first, stop = found.number.take(wides).searchsorted((origin, origin + size))
    if len(wides):
        # Of the row's slices that begin before the tile, only the last one can reach into it.
        before = wides.take(first - 1, mode="clip")
        reaches = (found.last.take(before) >= floor) & (found.end.take(before) > begin)
        first = first - ((first > 0) & reaches)
    return Tiles(
        wide=found.last.take(wides.take(ranges(first, stop))),
        wide_at=offsets(stop - first),
        bucket=numbers - np.repeat(origin, high - low),
        covered=covered.take(dense),
        count=count.take(dense),
        longest=longest.take(dense),
        dense_at=offsets(high - low),
    )


def window(
    start: I64, end: I64, low: I64, high: I64, level: int, index: int,
    part: tuple[int, int] = (0, TILE_BUCKETS),
) -> Tiles:  # fmt: skip
    """The tile `index` of `level` of each of the rows `low[k]:high[k]` of `start` and `end`, or of
    it the buckets part[0] up to part[1].

    O(log n + slices that begin in the tiles). Positions are those in `start` and `end`.
    """
    bucket = (index << TILE_BITS) + part[0]
    begin = bucket << level
    edges = np.array((begin, (bucket + part[1] - part[0]) << level), np.int64)
    # One binary search per row beats one over all rows in numpy: 2 us a row against 10 us a step.
    inside = np.array(
        [
            start[one:other].searchsorted(edges)
            for one, other in zip(low.tolist(), high.tolist(), strict=True)
        ],
        np.int64,
    ).reshape(-1, 2)
    # Only the slice just before can reach into the tile.
    first, last = low + np.maximum(inside[:, 0] - 1, 0), low + inside[:, 1]
    cuts = list(zip(first.tolist(), last.tolist(), strict=True))
    begins = np.concatenate([start[:0], *(start[one:other] for one, other in cuts)])
    ends = np.concatenate([end[:0], *(end[one:other] for one, other in cuts)])
    # The tile of row k has the numbers from (2k + 1) * 1024. The slice before it keeps its own
    # number only where that is the one just before; all others are out of reach.
    origin = (2 * np.arange(len(low)) + 1) << TILE_BITS
    sizes = last - first
    at = offsets(sizes)[:-1]
    number = begins >> level
    number += np.repeat(origin - bucket, sizes)
    some = sizes > 0
    number[at[some]] = np.maximum(number[at[some]], origin[some] - 2)
    found = buckets(begins, ends, number)
    made = tiles(level, found, origin, np.full(len(low), begin), at, part[1] - part[0])
    away = first - at
    return replace(
        made,
        bucket=made.bucket + part[0] if part[0] else made.bucket,
        wide=made.wide + np.repeat(away, np.diff(made.wide_at)),
        longest=made.longest + np.repeat(away, np.diff(made.dense_at)),
    )


def pyramid(start: I64, end: I64, low: I64, high: I64) -> Iterator[Level]:
    """All tiles of the rows `low[k]:high[k]` that hold more than RAW_LIMIT slices, level by level.

    `window` gives the same for each; these are the ones for which it would take long.
    """
    # Numbers of a row's buckets begin at k << (apart - level): beyond the last of the row before,
    # at every level. They have to stay below 2^63.
    apart = max(MAX_LEVEL + TILE_BITS, int(end.max()).bit_length() if len(end) else 0) + 2
    group = 1 << (62 - apart)
    for part in range(0, len(low), group):
        cut = slice(part, part + group)
        for level in _levels(start, end, low[cut], high[cut], apart):
            yield replace(level, row=level.row + part)


def _levels(start: I64, end: I64, low: I64, high: I64, apart: int) -> Iterator[Level]:
    finest = [
        finest_crowded(start[one:other])
        for one, other in zip(low.tolist(), high.tolist(), strict=True)
    ]
    found = buckets(start[:0], end[:0], start[:0])
    for level in range(min(finest, default=MAX_LEVEL + 1), MAX_LEVEL + 1):
        if len(found.number):
            found = coarser(found)
        # A row joins at the first level at which one of its tiles can be crowded.
        joining = [k for k, first in enumerate(finest) if first == level]
        if joining:
            parts = [
                _of_row(start, end, int(low[k]), int(high[k]), level, k << (apart - level))
                for k in joining
            ]
            found = Buckets.joined([found, *parts])
            if (found.number[1:] < found.number[:-1]).any():
                found = found.take(np.argsort(found.number, kind="stable"))
        tile, near = _crowded(found)
        if len(tile):
            bits = apart - level - TILE_BITS
            row, index = tile >> bits, tile & ((1 << bits) - 1)
            begin = index << (TILE_BITS + level)
            made = tiles(level, near, tile << TILE_BITS, begin, low[row])
            yield Level(level, row, index, made)


def finest_crowded(time: I64) -> int:
    """The finest level at which a tile can hold more than RAW_LIMIT of these instants."""
    if len(time) <= RAW_LIMIT:
        return MAX_LEVEL + 1
    # The tightest RAW_LIMIT + 1 neighbours; a tile that holds them is longer than their span.
    span = int((time[RAW_LIMIT:] - time[:-RAW_LIMIT]).min())
    return max(0, span.bit_length() - TILE_BITS)


def _of_row(start: I64, end: I64, low: int, high: int, level: int, number: int) -> Buckets:
    """Buckets of the slices `low:high`, numbered from `number` at time 0.

    A piece at a time: one that fits the processor's cache takes half the time.
    """
    pieces = []
    while low < high:
        stop = min(low + PIECE, high)
        if stop < high:  # to the end of the last slice's bucket
            edge = ((int(start[stop - 1]) >> level) + 1) << level
            stop = low + int(start[low:high].searchsorted(edge))
        begins = start[low:stop]
        piece = buckets(begins, end[low:stop], (begins >> level) + number)
        pieces.append(piece.moved(low))
        low = stop
    return Buckets.joined(pieces)


def _crowded(found: Buckets) -> tuple[I64, Buckets]:
    """Tiles (number >> TILE_BITS) with more than RAW_LIMIT slices, and the buckets they need."""
    tile = found.number >> TILE_BITS
    low = runs(tile)
    high = np.concatenate((low[1:], [len(tile)]))
    crowded = found.last[high - 1] - found.first[low] >= RAW_LIMIT
    needed = np.repeat(crowded, high - low)
    needed[np.maximum(low[crowded] - 1, 0)] = True
    near = found if needed.all() else found.take(np.flatnonzero(needed))
    return tile[low[crowded]], near


def runs(values: I64) -> I64:
    """Position at which each run of equal neighbours begins."""
    changes = np.flatnonzero(values[1:] != values[:-1])
    found = np.zeros(len(changes) + 1, np.int64)
    np.add(changes, 1, out=found[1:])
    return found


def offsets(sizes: I64) -> I64:
    """0 and the running total: where the parts of these sizes begin, and the last one ends."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def ranges(low: I64, high: I64) -> I64:
    """`low[0]..high[0] - 1`, then `low[1]..high[1] - 1` and so on, in one array."""
    sizes = high - low
    at = offsets(sizes)
    return np.arange(at[-1]) + np.repeat(low - at[:-1], sizes)
