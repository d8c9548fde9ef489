"""What takes longer or shorter than in a baseline, by op and module, over the steps of both."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from lanescope.webapp.plugins.diff.grouped_rows import grouped_rows
from lanescope.webapp.plugins.diff.op_totals import op_totals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Float64Array, Int64Array

Shared = dict[int, Int64Array]  # steps that are compared, by rank

FACTOR = 1.2
_MIN_NS = 20_000
"""An op of a module is slower if the median of its time per step is this many times the baseline's
and this much more, ns, and all but a quarter of its steps took longer than all but a quarter of the
baseline's (all of them, of fewer than MIN_QUARTILE_STEPS): a busy machine makes single steps long.
It makes most ops slower too, so the slowdown of the median op, of MIN_COMMON_OPS or more, is
allowed.
"""

MIN_WARMUP_STEPS, MIN_QUARTILE_STEPS = 3, 10
"""From MIN_WARMUP_STEPS shared steps on the first is left out: it does one-time work."""

MIN_TIMED_STEPS = 5
"""Steps that it takes to call an op slower: where chance alone makes lengths, all of so many of one
run are longer than all of the other with a chance of 1 in 252; of two, 1 in 6.
"""

MIN_COMMON_OPS = 10

_COLUMNS = (
    "name",
    "module",
    "base_ns",
    "run_ns",
    "difference_ns",
    "ratio",
    "base_calls",
    "run_calls",
    "state",
)


@dataclass(frozen=True)
class Timing:
    """Times per step of two runs."""

    steps: int  # that were compared, on the rank that has most of them
    base_step_ns: float  # median length of these steps over all shared ranks; NaN without any
    run_step_ns: float
    table: pd.DataFrame = field(repr=False)
    common: float = 1.0  # median over ops of run / base; 1 of fewer than MIN_COMMON_OPS ops

    @property
    def changed(self) -> pd.DataFrame:
        """Rows whose state is not "same"."""
        return self.table[self.table["state"] != "same"]


def timing_differences(base: Run, run: Run) -> Timing:
    """Compares the self time of ops, summed per step over threads and shared ranks.

    Steps are aligned by number: those that both runs finished. One row per op and module: base_ns
    and run_ns are medians over these steps of the self time in a step (means, of what only one
    run has), base_calls and run_calls mean calls in a step, ratio is run_ns / base_ns, state
    "slower", "faster", "added" (ran in the run only), "removed" or "same"; see FACTOR and MIN_NS.
    Largest difference first. Without shared steps the table is empty; of fewer than MIN_STEPS no op
    is called slower or faster.
    """
    shared: Shared = {}
    lengths: tuple[list[float], list[float]] = ([], [])
    for rank in sorted({*base.ranks} & {*run.ranks}):
        sides = base.steps(rank), run.steps(rank)
        numbers, *places = np.intersect1d(sides[0].index, sides[1].index, return_indices=True)
        first = 1 if len(numbers) >= MIN_WARMUP_STEPS else 0
        if len(numbers):
            shared[rank] = numbers[first:]
            for side, at, into in zip(sides, places, lengths, strict=True):
                into += (side.end_ns - side.start_ns)[at[first:]].tolist()
    steps = max((len(numbers) for numbers in shared.values()), default=0)
    if not steps:
        return Timing(0, np.nan, np.nan, pd.DataFrame(columns=list(_COLUMNS)))
    every = sorted({int(step) for numbers in shared.values() for step in numbers})
    table, common = _table([_per_step(one, shared, every) for one in (base, run)], every)
    was, now = (float(np.median(side)) for side in lengths)
    return Timing(steps, was, now, table, common)


def _per_step(run: Run, shared: Shared, every: list[int]) -> pd.DataFrame:
    """Self time ("ns") and calls over the shared ranks: a row for each op and module, a column for
    each step."""
    found = op_totals(run)
    kept = np.zeros(len(found), np.bool_)
    for rank, numbers in shared.items():
        kept |= (found["rank"] == rank).to_numpy() & found["step"].isin(numbers).to_numpy()
    found = found[kept]
    codes = [found[key].cat.codes.to_numpy(np.int64) for key in ("name", "module")]
    grouped = grouped_rows(codes)
    place = np.searchsorted(grouped.present, grouped.group) * len(every)
    place += np.searchsorted(every, found["step"].to_numpy())
    shape = len(grouped.present), len(every)
    values = [
        np.bincount(place, found[key].to_numpy(), shape[0] * shape[1]).reshape(shape)
        for key in ("ns", "calls")
    ]
    names = [
        found[key].cat.categories.astype(object)[code[grouped.row]]
        for key, code in zip(("name", "module"), codes, strict=True)
    ]
    columns = pd.MultiIndex.from_product([["ns", "calls"], every])
    return pd.DataFrame(np.hstack(values), pd.MultiIndex.from_arrays(names), columns)


def _table(wide: list[pd.DataFrame], every: list[int]) -> tuple[pd.DataFrame, float]:
    keys = ["name", "module"]
    index = wide[0].index.union(wide[1].index).sort_values()
    wide = [frame.reindex(index=index, fill_value=0) for frame in wide]
    low, high = (frame["ns"].to_numpy(np.float64) for frame in wide)
    was, now = (frame["calls"].to_numpy(np.float64).mean(axis=1) for frame in wide)
    single = (was == 0) | (now == 0)
    ours, theirs = (
        np.where(single, side.mean(axis=1), np.median(side, axis=1)) for side in (high, low)
    )
    state = np.full(len(index), "same", object)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = ours / theirs
    long = ~single & (np.minimum(ours, theirs) >= _MIN_NS)
    common = float(np.median(ratio[long])) if long.sum() >= MIN_COMMON_OPS else 1.0
    if len(every) >= MIN_TIMED_STEPS:
        state[_longer(high, low * max(common, 1.0))] = "slower"
        state[_longer(low, high / min(common, 1.0))] = "faster"
    state[was == 0] = "added"
    state[now == 0] = "removed"
    found = index.to_frame(index=False, name=keys).assign(
        base_ns=theirs,
        run_ns=ours,
        difference_ns=ours - theirs,
        ratio=ratio,
        base_calls=was,
        run_calls=now,
        state=state,
    )
    order = np.argsort(-np.abs(found["difference_ns"].to_numpy()), kind="stable")
    return found.iloc[order].reset_index(drop=True)[list(_COLUMNS)], common


def _longer(one: Float64Array, other: Float64Array) -> BoolArray:
    """Rows of `one` that took longer than the same rows of `other`, by the rule at FACTOR."""
    middle, least = np.median(one, axis=1), np.median(other, axis=1)
    share = 0.25 if one.shape[1] >= MIN_QUARTILE_STEPS else 0.0
    apart = np.quantile(one, share, axis=1) > np.quantile(other, 1 - share, axis=1)
    longer: BoolArray = apart & (middle >= FACTOR * least) & (middle - least >= _MIN_NS)
    return longer
