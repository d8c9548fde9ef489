"""Buckets of one level, in which slices begin: how they are found and merged (see `lod`).

What is done to many is done piece by piece: in one go each step would fetch memory again, which
takes longer than the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from lanescope.webapp.runs.types import Int64Array

SLICES_AT_ONCE = 1 << 15
"""Slices that are looked at in one go while tiles are made ahead."""

BATCH_BUCKETS = 1 << 13
"""Buckets that are merged in one go."""

EARLY_BITS = 22
"""`buckets` takes at most 2^22 slices at once: a length and a position share 63 bits."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """Buckets of one level in which slices begin, in order of time; of one row or of several."""

    number: Int64Array  # ascending; next to each other in time: numbers that differ by one
    first: Int64Array  # position of the first slice that begins in it
    last: Int64Array  # and of the last
    begin: Int64Array  # extent of the last: looking it up again at every level takes twice as long
    end: Int64Array
    inner: Int64Array  # ns covered by all but the last; these are within the bucket
    most: Int64Array  # length of the longest of all but the last; -1: none
    longest: Int64Array  # position of it (the first of equals); anything without one

    def take(self, which: Int64Array) -> Buckets:
        """Returns some of the buckets."""
        return Buckets(*(column.take(which) for column in self._columns()))

    def between(self, low: int, high: int) -> Buckets:
        """Returns those at low up to high."""
        return Buckets(*(column[low:high] for column in self._columns()))

    def moved(self, by: int) -> Buckets:
        """Returns the same buckets where slices are counted from another position."""
        return replace(self, first=self.first + by, last=self.last + by, longest=self.longest + by)

    @staticmethod
    def joined(parts: Sequence[Buckets]) -> Buckets:
        """Returns buckets of several stretches, one after another."""
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(part._columns() for part in parts), strict=True)
        return Buckets(*(np.concatenate(column) for column in columns))

    def _columns(self) -> tuple[Int64Array, ...]:
        return (
            self.number,
            self.first,
            self.last,
            self.begin,
            self.end,
            self.inner,
            self.most,
            self.longest,
        )


def buckets(start: Int64Array, end: Int64Array, number: Int64Array) -> Buckets:
    """Returns the buckets of slices, given each slice's bucket number (ascending). O(slices)."""
    if not len(start):
        none = np.empty(0, np.int64)
        return Buckets(none, none, none, none, none, none, none, none)
    first = runs(number)
    last = np.concatenate((first[1:], [len(start)])) - 1
    length = end - start
    inner = np.add.reduceat(length, first) - length.take(last)
    # The greatest of (length, how early) in one number: all but the last are within their bucket,
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


_FALLING = np.arange(SLICES_AT_ONCE - 1, -1, -1)


def _falling(count: int) -> Int64Array:
    """count - 1 down to 0."""
    some = len(_FALLING)
    return _FALLING[some - count :] if count <= some else np.arange(count - 1, -1, -1)


def coarser(fine: Buckets) -> Buckets:
    """Returns the buckets one level up: each is one of the finer ones, or two merged.

    Piece by piece.
    """
    cuts = np.arange(0, len(fine.number), BATCH_BUCKETS)
    cuts[1:] += fine.number[cuts[1:]] >> 1 == fine.number[cuts[1:] - 1] >> 1
    edges = pairwise([*cuts.tolist(), len(fine.number)])
    return Buckets.joined([_merged(fine.between(low, high)) for low, high in edges])


def _merged(fine: Buckets) -> Buckets:
    number = fine.number >> 1
    keep = runs(number)
    other = np.concatenate((keep[1:], [len(number)])) - 1  # equals keep where there is no partner
    # Worked out for all neighbours; most of them become one. Once merged, the left one's last
    # slice is one of "all but the last".
    pair = number[1:] == number[:-1]
    middle = (fine.end - fine.begin)[:-1]
    inner, most, longest = fine.inner.copy(), fine.most.copy(), fine.longest.copy()
    inner[:-1] += (middle + fine.inner[1:]) * pair
    for length, position in ((middle, fine.last[:-1]), (fine.most[1:], fine.longest[1:])):
        better = (length > most[:-1]) & pair
        longest[:-1] += (position - longest[:-1]) * better
        most[:-1] += (length - most[:-1]) * better
    return Buckets(
        number.take(keep),
        fine.first.take(keep),
        fine.last.take(other),
        fine.begin.take(other),
        fine.end.take(other),
        inner.take(keep),
        most.take(keep),
        longest.take(keep),
    )


def of_row(
    start: Int64Array, end: Int64Array, low: int, high: int, level: int, number: int
) -> Buckets:
    """Returns buckets of the slices `low:high`, numbered from `number` at time 0.

    A piece at a time.
    """
    pieces = []
    while low < high:
        stop = min(low + SLICES_AT_ONCE, high)
        if stop < high:  # to the end of the last slice's bucket
            edge = ((int(start[stop - 1]) >> level) + 1) << level
            stop = low + int(start[low:high].searchsorted(edge))
        begins = start[low:stop]
        piece = buckets(begins, end[low:stop], (begins >> level) + number)
        pieces.append(piece.moved(low))
        low = stop
    return Buckets.joined(pieces)


def runs(values: Int64Array) -> Int64Array:
    """Returns the position at which each run of equal neighbours begins."""
    (changes,) = (values[1:] != values[:-1]).nonzero()
    found = np.zeros(len(changes) + 1, np.int64)
    np.add(changes, 1, out=found[1:])
    return found


def offsets(sizes: Int64Array) -> Int64Array:
    """Returns 0 and the running total: where the parts of these sizes begin, and the last one
    ends."""
    found = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=found[1:])
    return found


def ranges(low: Int64Array, high: Int64Array) -> Int64Array:
    """Returns `low[0]..high[0] - 1`, then `low[1]..high[1] - 1` and so on, in one array."""
    sizes = high - low
    at = offsets(sizes)
    found: Int64Array = np.arange(at[-1]) + (low - at[:-1]).repeat(sizes)
    return found
