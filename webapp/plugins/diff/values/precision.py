"""Two runs that compute in other precision: how, and which differences are rounding."""

from __future__ import annotations

import re
from functools import lru_cache

import pandas as pd
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.plugins.diff.values.closeness import RELATIVE, relative_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_HALVES = ("bfloat16", "float16")

LESS_EXACT = 4.0
"""Tolerances of a dtype that a value may be off where one run alone works in it: a gradient is a
sum whose terms cancel each other, and parameters part a little more in every step."""


@lru_cache(maxsize=4)
def halves(run: Run) -> frozenset[str]:
    """Returns the dtypes of 16 bits that operators of a run work in."""
    texts: set[str | None] = set()
    for rows in run.pieces("op", columns=["dtypes"]):
        texts |= set(pc.unique(rows["dtypes"]).to_pylist())
    return frozenset({word for text in texts if text for word in re.findall(r"\w+", text)}) & {
        *_HALVES
    }


def coarsest_half(base: Run, run: Run) -> str | None:
    """Returns the coarsest dtype of 16 bits that operators of the runs work in. A gradient of
    another dtype is as exact as that: it is converted from it, or comes of what was."""
    return max(halves(base) | halves(run), key=RELATIVE.__getitem__, default=None)


def least_tolerance(base: Run, run: Run) -> float:
    """Returns the relative tolerance of all numbers where one run alone works in a dtype of 16
    bits."""
    alone = halves(base) ^ halves(run)
    return LESS_EXACT * max(map(relative_of, alone), default=0.0)


def precision_note(base: Run, run: Run) -> str | None:
    """Returns a sentence about the dtypes of parameters, or of what modules return, where they
    differ."""
    for table, key, words in (
        ("gradient", "parameter", "parameters are"),
        ("activation", "module", "modules return"),
    ):
        here, there = _dtypes(base, table, key), _dtypes(run, table, key)
        if here.empty or there.empty:
            continue
        both = here.merge(there, on=[key], suffixes=("_base", "_run"))
        apart = both[both["dtype_base"] != both["dtype_run"]]
        if len(apart):
            first = apart.iloc[0]
            return (
                f"the precision differs: {words} {units.printable(str(first['dtype_run']))} where "
                f"the baseline has {units.printable(str(first['dtype_base']))} ({len(apart):,} of "
                f"{len(both):,}, the first {units.printable(str(first[key]))})"
            )
    return None


def _dtypes(run: Run, table: str, key: str) -> pd.DataFrame:
    rows = to_frame(run.events(table, columns=[key, "dtype"]))
    return rows if rows.empty else rows.astype("object").dropna().drop_duplicates(key)
