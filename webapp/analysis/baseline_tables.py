"""Tables of a run beside those of a baseline."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from lanescope.webapp.runs.run import Run

BASE = "base_"
"""Begins the columns of the baseline."""


def paired_ranks(base: Run, run: Run) -> dict[int, int]:
    """Maps each rank of the run to the rank of the baseline that it is compared with.

    Ranks of the same number are a pair; without any, those at the same place.
    """
    common = {rank: rank for rank in run.ranks if rank in base.ranks}
    return common or dict(zip(run.ranks, base.ranks, strict=False))


def beside(
    base: pd.DataFrame, run: pd.DataFrame, keys: Sequence[str], values: Sequence[str]
) -> pd.DataFrame:
    """Returns the sums of some columns of two tables by keys: keys, `base_<value>`, `<value>`.

    Every key that one of them has gets a row; what the other lacks is 0.
    """
    columns = list(values)
    before, now = (one.groupby(list(keys), sort=True)[columns].sum() for one in (base, run))
    table = before.add_prefix(BASE).join(now, how="outer").fillna(0)
    kinds = {f"{side}{name}": run[name].dtype for name in columns for side in ("", BASE)}
    return table.astype(kinds).reset_index()


def largest_first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Returns the rows by the size of a change, whatever its sign; equal ones keep their order."""
    order = table[column].abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)
