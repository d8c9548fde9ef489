"""Which ops ran in a window of time, and how much of it did each take?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import ends_ns
from lanescope.webapp.runs.run import Run, RunError
from lanescope.webapp.runs.types import Float64Array, Int64Array

KEPT_OPS = 5_000_000
"""Ops of a run that are kept for the next window, at 40 bytes each."""

MAX_OPS = 2_000_000
"""Ops of a window of a larger run that a table is made of: read each time, 300 bytes each."""

OP_COLUMNS = ("op", "kind", "count", "total_ns", "self_ns", "mean_ns", "p50_ns", "p99_ns", "max_ns")

PREFIXES = (
    (("c10d::", "gloo:", "nccl:"), "collective"),
    (("Optimizer.",), "optimizer"),  # begins before the phase that it opens
)
"""Names of ops whose kind does not depend on the phase they begin in."""


@dataclass(frozen=True, eq=False)
class _Ops:
    """The ops of a run as flat arrays, and for each its parent's position (-1: none)."""

    start: Int64Array
    end: Int64Array
    parent: Int64Array
    name: npt.NDArray[np.int32]
    names: tuple[str, ...]
    kind: npt.NDArray[np.int32]
    kinds: tuple[str, ...]
    by_duration: (
        Int64Array  # positions by name, then duration: quantiles of a window need no sorting
    )


def op_table(run: Run, window: tuple[int, int] | None = None) -> pd.DataFrame:
    """Returns one row per op name that ran in the window [t0, t1) ns, the most self time first.

    count: calls that have an instant in the window. total_ns, self_ns: time within the window,
        total(op) = sum |call & W|,  self(op) = total(op) - sum over direct children |child & W|,
    so self times of all ops add up to the time that threads spent in ops. mean_ns, p50_ns, p99_ns,
    max_ns: of the whole durations of those calls. kind: phase in which the op spent most of the
    total ("collective" for communication, "other" outside any phase). An op that had not ended
    lasts to the end of the run. Raises RunError where `summable` says no.
    """
    held = held_in_memory(run)
    if not held and not summable(run, window):
        raise RunError(
            f"the window holds more than {MAX_OPS:,} ops, the most that one table sums up; "
            "choose a shorter window"
        )
    ops = _ops(run, None if held else window)
    low, high = window if window is not None else (0, run.duration_ns + 1)
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
    by_kind = np.bincount(name * len(ops.kinds) + ops.kind[chosen], cut, size * len(ops.kinds))
    rows = np.flatnonzero(count)
    ends = np.cumsum(count[rows])
    ordered = ops.by_duration[inside[ops.by_duration]]  # by name, then by duration, as count is
    full = ops.end[ordered] - ops.start[ordered]
    table = pd.DataFrame(
        {
            "op": [ops.names[row] for row in rows],
            "kind": [ops.kinds[k] for k in by_kind.reshape(size, -1).argmax(axis=1)[rows]],
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


def held_in_memory(run: Run) -> bool:
    """Returns whether the run is so small that its ops are kept for the next window."""
    return run.counts["op"] <= KEPT_OPS


def summable(run: Run, window: tuple[int, int] | None) -> bool:
    """Returns whether there is a table of this window: of a large run only of stretches of it."""
    if held_in_memory(run):
        return True
    return window is not None and run.rows_about("op", window) <= MAX_OPS


@lru_cache(maxsize=1)  # a page asks for one window after another of the same run
def _ops(run: Run, window: tuple[int, int] | None) -> _Ops:
    # What encloses an op of the window has an instant in it too, so the parents are there.
    columns = ["rank", "thread", "start_ns", "duration_ns", "depth", "name", "phase"]
    rows = run.events("op", columns=columns, window=window)
    start = rows["start_ns"].to_numpy()
    end = ends_ns(rows, run)
    name, names = _coded(rows["name"])
    phase, phases = _coded(rows["phase"])
    kinds = _kinds(run)
    words = tuple(dict.fromkeys(["other", *[word for _, word in PREFIXES], *kinds.values()]))
    kind_of_phase = np.array([words.index(kinds.get(p, "other")) for p in phases] or [0], np.int32)
    kind = kind_of_phase[phase] if len(phase) else phase
    for prefixes, word in PREFIXES:
        named = np.array([text.startswith(prefixes) for text in names] or [False])
        kind = np.where(named[name], words.index(word), kind).astype(np.int32)
    thread, _ = _coded(rows["thread"])
    place = rows["rank"].to_numpy().astype(np.int64) << 32 | thread
    parent = _parents(place, rows["depth"].to_numpy())
    order = np.lexsort((end - start, name))
    return _Ops(start, end, parent, name, tuple(names), kind, words, order)


def _parents(place: Int64Array, depth: npt.NDArray[np.int16]) -> Int64Array:
    """Position of each row's parent: the last row above it, of its thread, one level shallower.

    Rows are sorted by thread and start with parents first, so that is the enclosing call.
    """
    parent = np.full(len(depth), -1, np.int64)
    above, outer = np.flatnonzero(depth == 0), 0
    for level in np.unique(depth[depth > 0]).tolist():  # damaged rows may be of any depth
        here = np.flatnonzero(depth == level)
        if len(above) and outer == level - 1:
            at = np.searchsorted(above, here) - 1
            found = above[np.maximum(at, 0)]
            known = (at >= 0) & (place[found] == place[here])
            parent[here[known]] = found[known]
        above, outer = here, level
    return parent


def _kinds(run: Run) -> dict[str, str]:
    """Kind of each phase by its name, as an op's `phase` column holds the name."""
    rows = run.events("phase", columns=["name", "kind"])
    pairs = rows.group_by(["name", "kind"]).aggregate([([], "count_all")]).to_pylist()
    pairs.sort(key=lambda pair: pair["count_all"])  # the most common kind of a name comes last
    return {str(pair["name"]): str(pair["kind"]) for pair in pairs}


def _coded(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    array = column.unify_dictionaries().combine_chunks()
    if array.null_count:
        array = pc.dictionary_encode(array.cast(pa.string()).fill_null(""))
    codes: npt.NDArray[np.int32] = array.indices.to_numpy(zero_copy_only=False).astype(np.int32)
    return codes, [str(text) for text in array.dictionary.to_pylist()]
