"""Rows by their combination of integers: counts and sums that take no sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lanescope.webapp.runs.types import BoolArray, Int64Array


@dataclass(frozen=True)
class GroupedRows:
    """Which rows have the same integers in some columns."""

    group: Int64Array
    """Of each row; not every number below `size` occurs."""

    size: int
    present: Int64Array
    """The numbers that occur, in the order of the first column, then of the next."""

    row: Int64Array
    """One row of each that occurs."""

    counts: Int64Array
    """Rows of each that occurs."""

    def sums(self, values: Int64Array | BoolArray) -> Int64Array:
        """Returns the sum of a column over each group. Exact below 2^53."""
        total = np.bincount(self.group, values, self.size)[self.present]
        return total.astype(np.int64)


def grouped_rows(columns: Sequence[Int64Array]) -> GroupedRows:
    """Groups rows by their values in columns of integers, which are of equal length."""
    count = len(columns[0])
    most = max(4 * count, 1 << 16)  # groups that are numbered without being sorted
    group, size = np.zeros(count, np.int64), 1
    for column in columns if count else ():
        low, high = int(column.min()), int(column.max())
        if high - low < most:
            codes, several = column - low, high - low + 1
        else:
            values, codes = np.unique(column, return_inverse=True)
            several = len(values)
        group, size = group * several + codes, size * several
        if size > most:
            values, group = np.unique(group, return_inverse=True)
            size = len(values)
    counts = np.bincount(group, minlength=size)
    present = np.flatnonzero(counts)
    row = np.empty(size, np.int64)
    row[group] = np.arange(count)
    return GroupedRows(group, size, present, row[present], counts[present])
