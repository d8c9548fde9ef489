"""Work, times and rates of operators beside those of a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pandas as pd

from lanescope.webapp.analysis.baseline_tables import BASE, beside, largest_first, paired_ranks
from lanescope.webapp.plugins.efficiency.rates import (
    MODULE_COLUMN,
    OPERATOR_KEYS,
    measured_operators,
)
from lanescope.webapp.runs.run import Run

SUMS = ["calls", "total_flops", "total_bytes", "time_ns"]
RATES = {"flops_per_s": "total_flops", "bytes_per_s": "total_bytes"}
_CHANGE = "change_ns"


@lru_cache(maxsize=4)
def efficiency_changes(base: Run, run: Run) -> pd.DataFrame:
    """Returns operators of both runs with their times and rates, the largest change of time first.

    One row per rank, operator, module, shapes, dtypes and device. Columns rank, base_rank, these,
    and calls, total_flops, total_bytes, time_ns, flops_per_s, bytes_per_s, each also as
    `base_<column>`, and change_ns. Operators and figures are those of `efficiency`. An operator
    that one run lacks has 0 calls there; FLOPs, bytes and rates that are not known are NaN. Ranks
    of the same number are compared; without any, those at the same place. Callers must not change
    it.
    """
    mine, theirs = measured_operators(run), measured_operators(base)
    parts = []
    for rank, other in paired_ranks(base, run).items():
        table = beside(
            theirs[theirs["rank"] == other],
            mine[mine["rank"] == rank],
            [*OPERATOR_KEYS, MODULE_COLUMN],
            SUMS,
        )
        table.insert(0, "base_rank", other)
        table.insert(0, "rank", rank)
        parts.append(table)
    return _rated(pd.concat(parts, ignore_index=True))


def efficiency_changes_by(changes: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Returns rows of `efficiency_changes` summed by some of their columns, rates of the sums."""
    values = [f"{side}{name}" for side in ("", BASE) for name in SUMS]
    return _rated(changes.groupby(list(keys), sort=True)[values].sum().reset_index())


def _rated(table: pd.DataFrame) -> pd.DataFrame:
    """Adds rates and the change of time to sums; the largest change comes first."""
    for side in ("", BASE):
        seconds = table[f"{side}time_ns"].where(table[f"{side}time_ns"] > 0) * 1e-9
        for rate, total in RATES.items():
            done = table[f"{side}{total}"]
            table[f"{side}{total}"] = done.where(done > 0)  # 0: of no call the shapes are known
            table[f"{side}{rate}"] = table[f"{side}{total}"] / seconds
    table[_CHANGE] = table["time_ns"] - table[f"{BASE}time_ns"]
    return largest_first(table, _CHANGE)
