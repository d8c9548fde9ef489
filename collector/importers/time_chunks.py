"""The slices of a lane a stretch of time after another, so that memory does not grow with the lane.

What is open at the end of a stretch is taken along into the next one, and given out where it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import Refused
from .nesting import DEEPEST, around, ends, in_order, left, spend
from .spill import Rows, taken
from .timestamps import I64

MOST = 1 << 20
"""Slices of a stretch, about: working on them takes some 120 bytes each."""

_MOST_OPEN = 1 << 20
"""Slices that may be open, or begin, at one instant."""

_SAMPLE = 1 << 16
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Stretch:
    """Slices by start. `where` are their rows, `own` their durations less those of children."""

    where: NDArray[np.uint32]
    depth: I64
    own: I64


@dataclass(frozen=True)
class _Open:
    where: NDArray[np.uint32]
    start: I64
    duration: I64
    depth: I64
    own: I64

    def chosen(self, which: NDArray[np.bool_]) -> _Open:
        return _Open(
            self.where[which],
            self.start[which],
            self.duration[which],
            self.depth[which],
            self.own[which],
        )


def stretches(rows: Rows, which: NDArray[np.uint32], path: Path) -> Iterator[Stretch]:
    """The slices `rows[which]` of one lane, with what `around` says of all of them.

    Raises Refused where more are open at once than any program has.
    """
    start = taken(rows, "start", which)
    nothing = np.empty(0, np.int64)
    carried = _Open(np.empty(0, np.uint32), nothing, nothing, nothing, nothing)
    edges = _edges(start)
    for low, high in pairwise(edges):
        here = _within(start, low, high)
        mine, begins = which[here], start[here]
        if len(mine) + len(carried.where) > _MOST_OPEN + MOST:
            raise Refused(
                f"{path}: has more than {_MOST_OPEN} slices at one instant of a thread, expected a "
                "trace of a program"
            )
        found = _with(carried, rows, mine, begins)
        over = ends(found.start, found.duration) <= high
        if high == edges[-1]:
            over[:] = True
        closed, carried = found.chosen(over), found.chosen(~over)
        yield Stretch(
            closed.where, np.minimum(closed.depth, DEEPEST), left(closed.own, closed.duration)
        )


def in_time(rows: Rows, which: NDArray[np.uint32]) -> Iterator[NDArray[np.uint32]]:
    """`which` by start, those that start together as they stand in the file, some at a time."""
    start = taken(rows, "start", which)
    for low, high in pairwise(_edges(start)):
        if high == low + 1:  # it may be all of them, and their order is right
            for first in range(0, len(which), MOST):
                part = slice(first, first + MOST)
                yield which[part][start[part] == low]
        else:
            here = _within(start, low, high)
            yield which[here[np.argsort(start[here], kind="stable")]]


def _within(start: I64, low: int, high: int) -> I64:
    """Positions of the instants from `low` on and before `high`."""
    found = []
    for first in range(0, len(start), _AT_ONCE):
        part = start[first : first + _AT_ONCE]
        found.append(np.flatnonzero((part >= low) & (part < high)) + first)
    return np.concatenate(found)


def _with(carried: _Open, rows: Rows, mine: NDArray[np.uint32], begins: I64) -> _Open:
    """What was open, and slices that begin after it."""
    duration = taken(rows, "duration", mine)
    order = in_order(begins, duration)
    duration = duration[order]
    start = np.concatenate([carried.start, begins[order]])
    every = np.concatenate([carried.duration, duration])
    own = np.concatenate([carried.own, duration])
    known = len(carried.where)
    depth, parents = around(start, ends(start, every))
    spend(own, duration, parents[known:])
    depth[:known] = carried.depth
    return _Open(np.concatenate([carried.where, mine[order]]), start, every, depth, own)


def _edges(start: I64) -> list[int]:
    """Where stretches of about MOST slices begin, and where the last one ends."""
    if not len(start):
        return []
    edges = [int(start.min()), int(start.max()) + 1]
    if len(start) > MOST:
        sample = np.sort(start[:: len(start) // _SAMPLE + 1])
        step = max(1, len(sample) * MOST // len(start))
        chosen = sample[step::step]
        crowded = chosen[1:][np.diff(chosen) == 0]  # instants of many more than MOST
        edges = sorted({*edges, *chosen.tolist(), *(crowded + 1).tolist()})
    return edges
