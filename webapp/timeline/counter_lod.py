"""Level of detail of a counter: what a series of numbers looks like at 2^level ns a pixel.

The same tiles as for slices (see `lod`). Each bucket that holds samples has the least, the
greatest and the last of them. A counter keeps its value until the next sample, so a tile also
has the value in force as it begins. A NaN makes its bucket's least and greatest NaN: what is
wrong stays visible at every zoom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lanescope.webapp.runs.types import Float64Array, Int64Array
from lanescope.webapp.timeline.lod import (
    MAX_LEVEL,
    RAW_LIMIT,
    TILE_BITS,
    TILE_BUCKETS,
    finest_crowded,
)
from lanescope.webapp.timeline.lod_buckets import runs


@dataclass(frozen=True, eq=False)
class SampleTile:
    """One counter within one tile. Where `leading`, entry 0 is the value in force before it."""

    leading: bool
    bucket: Int64Array  # 0..1023 within the tile, ascending; 0 for the leading entry
    low: Float64Array
    high: Float64Array
    last: Float64Array

    def __len__(self) -> int:
        return len(self.bucket)


@dataclass(frozen=True, eq=False)
class _Buckets:
    number: Int64Array
    first: Int64Array  # position of the bucket's first sample
    last: Int64Array
    low: Float64Array
    high: Float64Array

    @classmethod
    def of(cls, number: Int64Array, value: Float64Array, offset: int) -> _Buckets:
        if not len(number):
            none = np.empty(0, np.int64)
            return cls(none, none, none, np.empty(0), np.empty(0))
        first = runs(number)
        last = np.concatenate((first[1:], [len(number)])) - 1
        low, high = np.minimum.reduceat(value, first), np.maximum.reduceat(value, first)
        return cls(number[first], first + offset, last + offset, low, high)

    def coarser(self) -> _Buckets:
        number = self.number >> 1
        keep = runs(number)
        until = np.concatenate((keep[1:], [len(number)])) - 1
        low, high = np.minimum.reduceat(self.low, keep), np.maximum.reduceat(self.high, keep)
        return _Buckets(number[keep], self.first[keep], self.last[until], low, high)

    def tile(self, value: Float64Array, index: int, before: int) -> SampleTile:
        """The tile, given the position of the sample before it (-1: none)."""
        origin = index << TILE_BITS
        low, high = np.searchsorted(self.number, (origin, origin + TILE_BUCKETS))
        cut = slice(int(low), int(high))
        lead = value[before : before + 1] if before >= 0 else value[:0]
        return SampleTile(
            leading=bool(len(lead)),
            bucket=np.concatenate((np.zeros(len(lead), np.int64), self.number[cut] - origin)),
            low=np.concatenate((lead, self.low[cut])),
            high=np.concatenate((lead, self.high[cut])),
            last=np.concatenate((lead, value[self.last[cut]])),
        )


def sample_window(time: Int64Array, value: Float64Array, level: int, index: int) -> SampleTile:
    """Returns the tile of a counter, from its samples (sorted by time)."""
    span = TILE_BITS + level
    low, high = (int(x) for x in np.searchsorted(time, (index << span, (index + 1) << span)))
    found = _Buckets.of(time[low:high] >> level, value[low:high], low)
    return found.tile(value, index, low - 1)


def sample_pyramid(time: Int64Array, value: Float64Array) -> Iterator[tuple[int, int, SampleTile]]:
    """Yields all tiles of a counter that hold more than RAW_LIMIT samples: (level, index, tile)."""
    level = finest_crowded(time)
    if level > MAX_LEVEL:
        return
    found = _Buckets.of(time >> level, value, 0)
    while True:
        tile = found.number >> TILE_BITS
        begin = found.first[runs(tile)]
        crowded = np.concatenate((begin[1:], [len(time)])) - begin > RAW_LIMIT
        for at in begin[crowded].tolist():
            index = int(time[at]) >> (level + TILE_BITS)
            yield level, index, found.tile(value, index, at - 1)
        if level == MAX_LEVEL:
            return
        found = found.coarser()
        level += 1
