"""What the peaks of a run and of its baseline consist of, side by side."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from lanescope.webapp.analysis.baseline_tables import BASE, beside, largest_first, paired_ranks
from lanescope.webapp.plugins.memory.usage import PEAK_COLUMNS, memory_peak
from lanescope.webapp.runs.run import Run

_KEYS = PEAK_COLUMNS[:-2]
VALUES = PEAK_COLUMNS[-2:]
CHANGE = "change_bytes"


@lru_cache(maxsize=4)
def memory_changes(base: Run, run: Run) -> pd.DataFrame:
    """Returns what differs between the peaks of each rank and device, the largest change first.

    Columns rank, base_rank, device, those of `memory_peak` (category, name, module, where, op), and
    bytes, storages, base_bytes, base_storages, change_bytes. A part that one run lacks has 0 bytes
    there. The changes of a rank and device add up to that of its peak. Ranks of the same number
    are compared; without any, those at the same place. No rows where one of the runs has no record
    of allocations. Callers must not change it.
    """
    mine, theirs = memory_peak(run), memory_peak(base)
    parts = []
    for rank, other in paired_ranks(base, run).items():
        before, now = theirs[theirs["rank"] == other], mine[mine["rank"] == rank]
        if before.empty or now.empty:
            continue
        table = beside(before, now, ["device", *_KEYS], VALUES)
        table.insert(0, "base_rank", other)
        table.insert(0, "rank", rank)
        parts.append(table)
    if not parts:
        shown = [
            "rank",
            "base_rank",
            "device",
            *_KEYS,
            *(f"{BASE}{one}" for one in VALUES),
            *VALUES,
        ]
        return pd.DataFrame(columns=[*shown, CHANGE])
    return _ranked(pd.concat(parts, ignore_index=True))


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Returns rows with `bytes` and `base_bytes`, with `change_bytes`, the largest change first."""
    found = table.assign(**{CHANGE: table["bytes"] - table[f"{BASE}bytes"]})
    return largest_first(found, CHANGE)


def memory_changes_by(changes: pd.DataFrame, key: str) -> pd.DataFrame:
    """Returns rows of `memory_changes` summed by one of their columns, the largest change first."""
    values = [*VALUES, *(f"{BASE}{one}" for one in VALUES)]
    return _ranked(changes.groupby(key, sort=True)[values].sum().reset_index())
