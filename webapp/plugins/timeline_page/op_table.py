"""Which ops ran in a window of time, and how much of it did each take?

The answer is made of the timeline's index, which has the slices of all lanes as arrays: to open the
files of a thousand ranks once more would take longer than everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.types import Float64Array, Int64Array, UInt32Array
from lanescope.webapp.timeline.index import Index
from lanescope.webapp.timeline.lanes import BASELINE
from lanescope.webapp.timeline.spans import SPAN_TABLES
from lanescope.webapp.timeline.styles import BESIDE, STYLES
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED

KEPT_OPS = 5_000_000
"""Ops of a run that are kept for the next window, at 40 bytes each."""

MAX_OPS = 2_000_000
"""Ops of a window of a larger run that a table is made of."""

OP_COLUMNS = ("op", "kind", "count", "total_ns", "self_ns", "mean_ns", "p50_ns", "p99_ns", "max_ns")

_OPTIMIZER = "Optimizer."
"""How names of ops begin that open the phase of the optimizer, before it."""

_Window = tuple[int, int]
_Rows = list[tuple[int, int]]
"""Of each row of a lane its range of slices."""


@dataclass(frozen=True, eq=False)
class _Ops:
    """Ops as flat arrays, and for each its parent's position (-1: none)."""

    start: Int64Array
    end: Int64Array
    parent: Int64Array
    name: npt.NDArray[np.int64]
    names: tuple[str, ...]
    kind: npt.NDArray[np.int64]  # position in STYLES
    by_duration: (
        Int64Array  # positions by name, then duration: quantiles of a window need no sorting
    )


def op_table(index: Index, window: _Window | None = None) -> pd.DataFrame:
    """Returns one row per op name that ran in the window [t0, t1) ns, the most self time first.

    count: calls that have an instant in the window. total_ns, self_ns: time within the window,
        total(op) = sum |call & W|,  self(op) = total(op) - sum over direct children |child & W|,
    so self times of all ops add up to the time that threads spent in ops. mean_ns, p50_ns, p99_ns,
    max_ns: of the whole durations of those calls. kind: phase in which the op spent most of the
    total ("collective" for communication, "other" outside any phase). An op that had not ended
    lasts to the end of the run. An op that has no place among the calls of its thread has the
    deepest one around it as parent. Raises RunError where `summable` says no.
    """
    held = held_in_memory(index)
    if not held and not summable(index, window):
        raise RunError(
            f"the window holds more than {MAX_OPS:,} ops, the most that one table sums up; "
            "choose a shorter window"
        )
    ops = _ops(index, None if held else window)
    low, high = window if window is not None else (0, int(ops.end.max(initial=0)) + 1)
    inside = (ops.end > low) & (ops.start < high)
    # An instant op has no extent to overlap with; it counts where it happens.
    inside |= (ops.start == ops.end) & (ops.start >= low) & (ops.start < high)
    chosen = np.flatnonzero(inside)
    if not len(chosen):
        return _typed(pd.DataFrame(columns=list(OP_COLUMNS)))
    name, parent = ops.name[chosen], ops.parent[chosen]
    cut = np.minimum(ops.end[chosen], high) - np.maximum(ops.start[chosen], low)
    # Sums of times stay below 2^53, so the weights' float64 holds them exactly.
    children = np.bincount(parent[parent >= 0], cut[parent >= 0], len(ops.start))
    own = cut - children[chosen].astype(np.int64)
    size = len(ops.names)
    count = np.bincount(name, minlength=size)
    by_kind = np.bincount(name * len(STYLES) + ops.kind[chosen], cut, size * len(STYLES))
    rows = np.flatnonzero(count)
    ends = np.cumsum(count[rows])
    ordered = ops.by_duration[inside[ops.by_duration]]  # by name, then by duration, as count is
    full = ops.end[ordered] - ops.start[ordered]
    table = pd.DataFrame(
        {
            "op": [ops.names[row] for row in rows],
            "kind": [STYLES[k] for k in by_kind.reshape(size, -1).argmax(axis=1)[rows]],
            "count": count[rows],
            "total_ns": np.bincount(name, cut, size)[rows],
            "self_ns": np.bincount(name, own, size)[rows],
            "mean_ns": np.add.reduceat(full, ends - count[rows]) / count[rows],
            "p50_ns": _quantile(full, ends, count[rows], 0.5),
            "p99_ns": _quantile(full, ends, count[rows], 0.99),
            "max_ns": full[ends - 1],
        }
    )
    table = table.sort_values(["self_ns", "op"], ascending=[False, True], kind="stable")
    return _typed(table.reset_index(drop=True))


def _quantile(
    values: Int64Array, ends: Int64Array, count: Int64Array, share: float
) -> Float64Array:
    """Of each group of ascending values that ends at `ends`, interpolated as numpy does."""
    place = (ends - count) + (count - 1) * share
    low = np.floor(place).astype(np.int64)
    high = np.minimum(low + 1, ends - 1)
    step = (values[high] - values[low]).astype(np.float64)
    return values[low].astype(np.float64) + (place - low) * step


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    whole = dict.fromkeys(("count", "total_ns", "self_ns", "max_ns"), "int64")
    return table.astype({**whole, **dict.fromkeys(("mean_ns", "p50_ns", "p99_ns"), "float64")})


def held_in_memory(index: Index) -> bool:
    """Returns whether the run is so small that its ops are kept for the next window."""
    return len(index.slices.start) <= KEPT_OPS


def summable(index: Index, window: _Window | None) -> bool:
    """Returns whether there is a table of this window: of a large run only of stretches of it."""
    if held_in_memory(index):
        return True
    if window is None:
        return False
    ranges = (one for rows in _lanes(index, window, "op") for one in rows)
    return sum(high - low for low, high in ranges) <= MAX_OPS


def _lanes(index: Index, window: _Window | None, table: str) -> Iterator[_Rows]:
    """Yields of each lane of the run its rows of a table: their slices that reach into the window,
    or touch it."""
    wanted = SPAN_TABLES.index(table)
    of_rows = index.arrays["row_table"]
    for lane, rows in zip(index.lanes, index.lane_rows, strict=True):
        own = [row for row in rows if of_rows[row] == wanted] if lane.kind != BASELINE else []
        yield [_within(index, index.row_begin[row], index.row_end[row], window) for row in own]


def _within(index: Index, low: int, high: int, window: _Window | None) -> tuple[int, int]:
    if window is None:
        return low, high
    # Slices of a row do not overlap, so their ends ascend as well.
    start, end = index.slices.start[low:high], index.slices.end[low:high]
    first = int(end.searchsorted(window[0]))
    return low + first, low + max(first, int(start.searchsorted(window[1])))


@lru_cache(maxsize=1)  # a page asks for one window after another of the same run
def _ops(index: Index, window: _Window | None) -> _Ops:
    # What encloses an op of the window has an instant in it too, so the parents are there.
    names = np.array(index.paints.names or [0])
    styles = np.array(index.paints.styles or [0]) & ~STYLE_UNFINISHED
    opening = np.array([text.startswith(_OPTIMIZER) for text in index.names] or [False])
    styles[opening[names]] = STYLES.index("optimizer")
    starts: list[Int64Array] = []
    ends: list[Int64Array] = []
    parents: list[Int64Array] = []
    paints: list[UInt32Array] = []
    kinds: list[Int64Array] = []
    at = 0
    lanes = zip(_lanes(index, window, "op"), _lanes(index, window, "phase"), strict=True)
    for rows, phases in lanes:
        start, end, paint = _columns(index, rows)
        kind = styles.take(paint, mode="clip")
        beside = np.flatnonzero(kind >= STYLES.index(BESIDE[0]))
        if len(beside):
            kind[beside] = _kinds(index, phases, styles, start[beside])
        starts.append(start)
        ends.append(end)
        paints.append(paint)
        kinds.append(kind)
        parents.append(_parents(start, end, [high - low for low, high in rows], at))
        at += len(start)
    start, end = _whole(starts), _whole(ends)
    name = names.take(_whole(paints), mode="clip")
    order = np.lexsort((end - start, name))
    return _Ops(start, end, _whole(parents), name, index.names, _whole(kinds), order)


def _whole(parts: Sequence[npt.NDArray[Any]]) -> Int64Array:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _columns(index: Index, rows: _Rows) -> tuple[Int64Array, Int64Array, UInt32Array]:
    """Start, end and paint of the slices of some rows, one row after another."""
    columns: list[npt.NDArray[Any]] = [index.slices.start, index.slices.end, index.slices.paint]
    start, end, paint = (
        np.concatenate([column[:0], *(column[low:high] for low, high in rows)])
        for column in columns
    )
    return start, end, paint


def _parents(start: Int64Array, end: Int64Array, sizes: Sequence[int], at: int) -> Int64Array:
    """Position, from `at` on, of the slice around each: the deepest in the rows above."""
    parent = np.full(len(start), -1, np.int64)
    edges = [0, *np.cumsum(sizes).tolist()]
    for row in range(1, len(sizes)):
        left = np.arange(edges[row], edges[row + 1])
        for above in range(row - 1, -1, -1):
            found = _around(start, edges[above], edges[above + 1], start[left])
            inside = (found >= 0) & (end[found] >= end[left])
            parent[left[inside]] = found[inside] + at
            left = left[~inside]
            if not len(left):
                break
    return parent


def _around(start: Int64Array, low: int, high: int, instants: Int64Array) -> Int64Array:
    """Position of the last slice of a row that starts at each instant or before; -1: none."""
    before = start[low:high].searchsorted(instants, side="right")
    return np.where(before > 0, before + (low - 1), -1)


def _kinds(
    index: Index, phases: _Rows, styles: npt.NDArray[np.int64], instants: Int64Array
) -> npt.NDArray[np.int64]:
    """The kind of the innermost phase of a lane at each instant."""
    kind = np.full(len(instants), STYLES.index("other"))
    for low, high in phases:
        found = _around(index.slices.start, low, high, instants)
        inside = (found >= 0) & (index.slices.end[found] > instants)
        kind[inside] = styles.take(index.slices.paint[found[inside]], mode="clip")
    return kind
