"""Rows by their combination of integers, against pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lanescope.webapp.plugins.diff.grouped_rows import grouped_rows


@pytest.mark.parametrize("spread", [3, 1 << 20, 1 << 61])
@pytest.mark.parametrize("columns", [1, 3])
def test_counts_and_sums_are_those_of_pandas(spread: int, columns: int) -> None:
    numbers = np.random.default_rng(0)
    few = [numbers.integers(-spread, spread, 50)[numbers.integers(0, 50, 999)] for _ in "abc"]
    values, keys = numbers.integers(0, 1 << 40, 999), list(range(columns))
    found = grouped_rows(few[:columns])
    frame = pd.DataFrame({k: few[k][found.row] for k in keys})
    frame = frame.assign(count=found.counts, sum=found.sums(values))
    wanted = pd.DataFrame({k: few[k] for k in keys}).assign(value=values)
    wanted = wanted.groupby(keys)["value"].agg(["count", "sum"]).reset_index()
    pd.testing.assert_frame_equal(frame, wanted)


def test_no_rows_make_no_groups() -> None:
    empty = np.empty(0, np.int64)
    found = grouped_rows([empty, empty])
    assert not len(found.row)
    assert not len(found.sums(empty))
