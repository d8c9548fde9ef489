"""Algebra of sets of instants, held as sorted, disjoint, half-open intervals of int64 nanoseconds.

All operations are exact and vectorised: a sweep over the sorted ends, O(n log n), no sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanescope.webapp.runs.types import BoolArray, Int64Array


@dataclass(frozen=True, eq=False)
class Intervals:
    """A set of instants: the union of [start[i], end[i]), ascending, none empty, none touching.

    Made by `Intervals.of` from any slices; the form is unique, so equal sets have equal arrays.
    """

    start: Int64Array
    end: Int64Array

    @classmethod
    def of(cls, start: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
        """Returns the union of slices [start[i], end[i]), in any order, overlapping or not.

        Slices without length (end <= start) hold no instant and vanish.
        """
        low, high = np.asarray(start, np.int64), np.asarray(end, np.int64)
        some = high > low
        low, high = low[some], high[some]
        if not len(low):
            return cls(low, high)
        order = np.argsort(low, kind="stable")
        low, reach = low[order], np.maximum.accumulate(high[order])
        opens = np.flatnonzero(low[1:] > reach[:-1]) + 1
        first = np.concatenate(([0], opens))
        last = np.concatenate((opens, [len(low)])) - 1
        return cls(low[first], reach[last])

    @property
    def total(self) -> int:
        """Time covered: sum of (end - start), in ns."""
        return int((self.end - self.start).sum())

    def __len__(self) -> int:
        return len(self.start)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.start, other.start) and np.array_equal(self.end, other.end)

    def union(self, other: Intervals) -> Intervals:
        """Returns instants in either: A | B."""
        if not len(self) or not len(other):
            return self if len(self) else other
        return at_least((self, other), 1)

    def intersection(self, other: Intervals) -> Intervals:
        """Returns instants in both: A & B."""
        if not len(self) or not len(other):
            return other if len(self) else self
        return at_least((self, other), 2)

    def subtraction(self, other: Intervals) -> Intervals:
        """Returns instants in this one and not in the other: A - B."""
        if not len(other):
            return self
        times, depth = _sweep((self, other), (1, 2))
        return _where(times, depth == 1)

    def covered(self, instants: npt.ArrayLike) -> Int64Array:
        """Returns the time of the set before each instant, ns."""
        times = np.asarray(instants, np.int64)
        before = np.concatenate(([0], np.cumsum(self.end - self.start)))
        place = np.searchsorted(self.start, times, side="right")
        ends = np.concatenate(([0], self.end))[place]  # of the last one that has begun
        return before[place] - np.where(place > 0, np.maximum(ends - times, 0), 0)

    def clip(self, low: int, high: int) -> Intervals:
        """Returns instants within [low, high)."""
        return Intervals.of(self.start.clip(low, high), self.end.clip(low, high))


def union(sets: Iterable[Intervals]) -> Intervals:
    """Returns instants in any of the sets."""
    parts = list(sets)
    none = np.zeros(0, np.int64)
    return Intervals.of(
        np.concatenate([none, *(one.start for one in parts)]),
        np.concatenate([none, *(one.end for one in parts)]),
    )


def at_least(sets: Sequence[Intervals], count: int) -> Intervals:
    """Returns instants in `count` or more of the sets (`count` >= 1)."""
    times, depth = _sweep(sets, (1,) * len(sets))
    return _where(times, depth >= count)


def _sweep(sets: Sequence[Intervals], weights: Sequence[int]) -> tuple[Int64Array, Int64Array]:
    """Instants where membership changes, and the weight of the sets that hold from each on."""
    if not any(len(one) for one in sets):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    times = np.concatenate([edge for one in sets for edge in (one.start, one.end)])
    steps = np.concatenate(
        [
            edge
            for one, weight in zip(sets, weights, strict=True)
            for edge in (np.full(len(one), weight), np.full(len(one), -weight))
        ]
    )
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(steps[order])
    # Of the changes at one instant only the sum counts: the state after the last of them.
    settled = np.append(times[1:] != times[:-1], True)
    return times[settled], depth[settled]


def _where(times: Int64Array, inside: BoolArray) -> Intervals:
    """The maximal intervals on which `inside` holds; it is false after the last instant."""
    before = np.concatenate(([False], inside[:-1]))
    return Intervals(times[inside & ~before], times[~inside & before])


def enclosing(start: Int64Array, end: Int64Array, instants: Int64Array) -> Int64Array:
    """Returns the position of the slice of a row that holds each instant, -1 where none does.

    The row is sorted and without overlap; a slice holds the instants of [start, end).
    """
    if not len(start):
        return np.full(len(instants), -1, np.int64)
    position = np.searchsorted(start, instants, side="right") - 1
    return np.where((position >= 0) & (end[position] > instants), position, -1)
