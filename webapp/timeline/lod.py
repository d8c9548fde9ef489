"""Level of detail: what a row of slices looks like when a bucket of 2^level ns is one pixel.

A row is a pair of sorted int64 arrays `start`, `end` in which no slice overlaps the next
(`end[i] <= start[i + 1]`); slices are half-open, [start, end). At level L the axis is cut into
buckets of 2^L ns, and 1024 buckets are a tile. Within a tile

- a *wide* slice lasts at least one bucket. It is reported itself, with exact times;
- the others are *short*. Each bucket holds how many of them begin in it, how many nanoseconds of
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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lanescope.webapp.runs.types import BoolArray, Int64Array
from lanescope.webapp.timeline.lod_buckets import (
    SLICES_AT_ONCE,
    Buckets,
    buckets,
    coarser,
    of_row,
    offsets,
    ranges,
    runs,
)

MAX_LEVEL = 40
"""Coarsest level: a tile of 2^50 ns, 13 days."""

TILE_BITS = 10
TILE_BUCKETS = 1 << TILE_BITS

RAW_LIMIT = 4096
"""Slices per tile up to which it is made from the slices when asked for. Tiles with more are made
ahead (`pyramid`): they hold at most 2049 entries, so a level made ahead has at most half as many
entries as the row has slices, and in practice all levels together have about a fifth."""

FENCE = 512
"""Slices from one fence to the next: a page of memory has the starts of so many."""

WHOLE = (0, TILE_BUCKETS)
"""The part of a tile that is all of it: first bucket, and the one after the last."""

_Part = tuple[int, int]
_Row = tuple[int, int]
"""Positions of its first slice, and of the one after its last."""

BATCH_TILES = 16
"""Tiles that are made ahead in one go."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles of one level, one after another.

    Tile k has the entries `wide_at[k]:wide_at[k + 1]` and `dense_at[k]:dense_at[k + 1]`.
    """

    wide: Int64Array  # positions of the wide slices that touch the tile, in order of time
    wide_at: Int64Array
    bucket: Int64Array  # 0..1023 within the tile, ascending: buckets touched by short slices
    covered: Int64Array  # ns of the bucket that short slices cover
    count: Int64Array  # short slices that begin in it; 0 where only a tail reaches in
    longest: Int64Array  # position of the longest short slice that touches it (the first of equals)
    dense_at: Int64Array

    @staticmethod
    def joined(parts: Sequence[Tiles]) -> Tiles:
        """Returns tiles one after another."""
        if len(parts) == 1:
            return parts[0]
        wide, bucket, covered, count, longest = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("wide", "bucket", "covered", "count", "longest")
        )
        wide_at = offsets(np.concatenate([np.diff(part.wide_at) for part in parts]))
        dense_at = offsets(np.concatenate([np.diff(part.dense_at) for part in parts]))
        return Tiles(wide, wide_at, bucket, covered, count, longest, dense_at)


@dataclass(frozen=True, eq=False)
class Level:
    """Crowded tiles of one level: tile i is `index[i]` of row `row[i]`, by row, then index."""

    level: int
    row: Int64Array
    index: Int64Array
    tiles: Tiles


def _with_tails(dense: Int64Array, of: Int64Array, count: int) -> Int64Array:
    """Returns positions of buckets in the order of their numbers.

    A tail of bucket `of[k]` is at position `count` + k, and belongs right after that bucket.
    """
    order = np.concatenate((dense, of)).argsort(kind="stable")
    return np.concatenate((dense, count + np.arange(len(of)))).take(order)


def tiles(
    level: int,
    found: Buckets,
    origin: Int64Array,
    begin: Int64Array,
    floor: Int64Array,
    size: int = TILE_BUCKETS,
) -> Tiles:
    """Returns tiles, or parts of them: the `size` buckets of tile k are numbered from `origin[k]`
    and begin at `begin[k]` ns.

    `found` holds at least the tiles' buckets and the one before each, if its row has one. The row
    of tile k begins at position `floor[k]`. Origins ascend.
    """
    length = found.end - found.begin
    short = length < 1 << level
    edge = (found.begin | ((1 << level) - 1)) + 1
    number = found.number
    beyond = np.maximum(found.end - edge, 0) * short  # part of its last slice past its edge
    covered = length * short - beyond + found.inner
    count = found.last - found.first + short
    better = short & (length > found.most)
    # `where` would have the processor guess for each bucket which one it is.
    longest = (found.last - found.longest) * better + found.longest
    present = count > 0

    # The tail of a bucket's last short slice is in the very next bucket.
    tail = beyond > 0
    known = number[1:] - number[:-1] == 1
    into = tail[:-1] & known
    covered[1:] += beyond[:-1] * known
    most = np.maximum(length * short, found.most)[1:]
    longest[1:] += (found.last[:-1] - longest[1:]) * (into & (length[:-1] >= most))
    present[1:] |= into
    (dense,) = present.nonzero()
    tail[:-1] &= ~known
    (of,) = tail.nonzero()
    if len(of) and number[of[-1]] + 1 == origin[-1] + size:  # in no tile here
        of = of[:-1]
    if len(of):  # buckets that hold nothing but a tail: added behind the others
        number = np.concatenate((number, number[of] + 1))
        covered = np.concatenate((covered, beyond[of]))
        count = np.concatenate((count, np.zeros(len(of), np.int64)))
        longest = np.concatenate((longest, found.last[of]))
        dense = _with_tails(dense, of, len(present))
    dense, numbers, sizes = _within(number, dense, origin, size)

    wide, wide_at = _wide_slices(found, ~short, origin, begin, floor, size)
    return Tiles(
        wide=wide,
        wide_at=wide_at,
        bucket=numbers - origin.repeat(sizes),
        covered=covered.take(dense),
        count=count.take(dense),
        longest=longest.take(dense),
        dense_at=offsets(sizes),
    )


def _within(
    number: Int64Array, dense: Int64Array, origin: Int64Array, size: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Returns positions and numbers of the buckets that are in a tile, and how many each tile has.

    `dense` has positions in `number`, in the order of their numbers.
    """
    numbers = number.take(dense)
    low, high = numbers.searchsorted((origin, origin + size))
    if (high - low).sum() < len(dense):
        inside = ranges(low, high)
        dense, numbers = dense.take(inside), numbers.take(inside)
    return dense, numbers, high - low


def _wide_slices(
    found: Buckets,
    wide: BoolArray,
    origin: Int64Array,
    begin: Int64Array,
    floor: Int64Array,
    size: int,
) -> tuple[Int64Array, Int64Array]:
    """Returns the slices that are drawn as they are, of all tiles, and where each tile's begin.

    `wide`: buckets whose last slice is such a one.
    """
    (wides,) = wide.nonzero()
    first, stop = found.number.take(wides).searchsorted((origin, origin + size))
    if len(wides):
        # Of the row's slices that begin before the tile, only the last one can reach into it.
        before = wides.take(first - 1, mode="clip")
        reaches = (found.last.take(before) >= floor) & (found.end.take(before) > begin)
        first = first - ((first > 0) & reaches)
    return found.last.take(wides.take(ranges(first, stop))), offsets(stop - first)


def fences(start: Int64Array, at: int = 0) -> Int64Array:
    """Returns every FENCE-th start, of slices that begin with the one at `at` of all."""
    return start[-at % FENCE :: FENCE]


def narrowed(
    fence: Int64Array, rows: Iterable[_Row], level: int, index: int, part: _Part = WHOLE
) -> list[_Row]:
    """Returns of each row a stretch with all its slices that touch a tile, or a part of it, found
    without looking at slices, which may be in a file that is yet to be read.
    """
    edges = _edges(level, index, part)
    found = []
    for low, high in rows:
        first = -(-low // FENCE)
        known = fence[first : -(-high // FENCE)].searchsorted(edges)
        begin = max(low, (first + int(known[0]) - 1) * FENCE)
        found.append((begin, min(high, (first + int(known[1])) * FENCE)))
    return found


def window_tiles(
    start: Int64Array,
    end: Int64Array,
    rows: Sequence[_Row],
    level: int,
    index: int,
    part: _Part = WHOLE,
) -> Tiles:
    """Returns the tile `index` of `level` of each of the rows `low:high` of `start` and `end`, or
    of it the buckets part[0] up to part[1].

    O(log n + slices that begin in the tiles). Positions are those in `start` and `end`.
    """
    edges = _edges(level, index, part)
    low = np.array([low for low, _ in rows], np.int64)
    # One binary search per row beats one over all rows in numpy: 2 us a row against 10 us a step.
    inside = np.array(
        [start[one:other].searchsorted(edges) for one, other in rows], np.int64
    ).reshape(-1, 2)
    # Only the slice just before can reach into the tile.
    first, last = low + np.maximum(inside[:, 0] - 1, 0), low + inside[:, 1]
    cuts = list(zip(first.tolist(), last.tolist(), strict=True))
    begins = np.concatenate([start[:0], *(start[one:other] for one, other in cuts)])
    ends = np.concatenate([end[:0], *(end[one:other] for one, other in cuts)])
    begin, bucket = int(edges[0]), int(edges[0]) >> level
    # The tile of row k has the numbers from (2k + 1) * 1024. The slice before it keeps its own
    # number only where that is the one just before; all others are out of reach.
    origin = (2 * np.arange(len(low)) + 1) << TILE_BITS
    sizes = last - first
    at = offsets(sizes)[:-1]
    number = begins >> level
    number += (origin - bucket).repeat(sizes)
    some = sizes > 0
    number[at[some]] = np.maximum(number[at[some]], origin[some] - 2)
    found = buckets(begins, ends, number)
    made = tiles(level, found, origin, np.full(len(low), begin), at, part[1] - part[0])
    away = first - at
    return replace(
        made,
        bucket=made.bucket + part[0] if part[0] else made.bucket,
        wide=made.wide + away.repeat(made.wide_at[1:] - made.wide_at[:-1]),
        longest=made.longest + away.repeat(made.dense_at[1:] - made.dense_at[:-1]),
    )


def _edges(level: int, index: int, part: _Part) -> Int64Array:
    """Where a part of a tile begins and ends in ns."""
    return np.array([((index << TILE_BITS) + bucket) << level for bucket in part], np.int64)


def pyramid(
    start: Int64Array, end: Int64Array, low: Int64Array, high: Int64Array
) -> Iterator[Level]:
    """Yields all tiles of the rows `low[k]:high[k]` that hold more than RAW_LIMIT slices, level by
    level.

    `window_tiles` gives the same for each; these are the ones for which it would take long.
    """
    # Numbers of a row's buckets begin at k << (apart - level): beyond the last of the row before,
    # at every level. They have to stay below 2^63.
    apart = max(MAX_LEVEL + TILE_BITS, int(end.max()).bit_length() if len(end) else 0) + 2
    group = 1 << (62 - apart)
    for part in range(0, len(low), group):
        cut = slice(part, part + group)
        for level in _levels(start, end, low[cut], high[cut], apart):
            yield replace(level, row=level.row + part)


def _levels(
    start: Int64Array, end: Int64Array, low: Int64Array, high: Int64Array, apart: int
) -> Iterator[Level]:
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
                of_row(start, end, int(low[k]), int(high[k]), level, k << (apart - level))
                for k in joining
            ]
            found = Buckets.joined([found, *parts])
            if (found.number[1:] < found.number[:-1]).any():
                found = found.take(np.argsort(found.number, kind="stable"))
        made, bits = [], apart - level - TILE_BITS
        for tile, near in _crowded(found):
            row, index = tile >> bits, tile & ((1 << bits) - 1)
            begin = index << (TILE_BITS + level)
            made.append((row, index, tiles(level, near, tile << TILE_BITS, begin, low[row])))
        if made:
            rows, indexes, parts = zip(*made, strict=True)
            yield Level(level, np.concatenate(rows), np.concatenate(indexes), Tiles.joined(parts))


def finest_crowded(time: Int64Array) -> int:
    """Returns the finest level at which a tile can hold more than RAW_LIMIT of these instants."""
    if len(time) <= RAW_LIMIT:
        return MAX_LEVEL + 1
    # The tightest RAW_LIMIT + 1 neighbours; a tile that holds them is longer than their span.
    low, high = time[:-RAW_LIMIT], time[RAW_LIMIT:]
    spans = (
        high[at : at + SLICES_AT_ONCE] - low[at : at + SLICES_AT_ONCE]
        for at in range(0, len(low), SLICES_AT_ONCE)
    )
    span = min(int(some.min()) for some in spans)
    return max(0, span.bit_length() - TILE_BITS)


def _crowded(found: Buckets) -> Iterator[tuple[Int64Array, Buckets]]:
    """Tiles (number >> TILE_BITS) with more than RAW_LIMIT slices, and the buckets they need.

    A few at a time: what the processor's cache holds takes a third of the time.
    """
    tile = found.number >> TILE_BITS
    low = runs(tile)
    high = np.concatenate((low[1:], [len(tile)]))
    crowded = np.flatnonzero(found.last[high - 1] - found.first[low] >= RAW_LIMIT)
    tile, low, high = tile[low[crowded]], low[crowded], high[crowded]
    low -= low > 0  # and the bucket before each
    for at in range(0, len(tile), BATCH_TILES):
        part = slice(at, at + BATCH_TILES)
        begin, end = low[part], high[part]
        begin[1:] = np.maximum(begin[1:], end[:-1])
        if (begin[1:] == end[:-1]).all():
            near = found.between(int(begin[0]), int(end[-1]))
        else:
            near = found.take(ranges(begin, end))
        yield tile[part], near
