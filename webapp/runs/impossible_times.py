"""Rows whose times cannot be: of damaged files, or of a tool that wrote nonsense.

They stay, where `Axis` puts them, so that nothing overflows; the run says how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.columns import TIME_COLUMNS
from lanescope.webapp.runs.clock_axis import Axis, axis_of
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.parquet_parts import Part
from lanescope.webapp.runs.table_reader import Rows

_DAYS = schema.MAX_TIME_NS // (86_400 * 10**9)


def impossible_times(rows: Rows) -> list[str]:
    """Returns a sentence for each rank that has such rows."""
    found: dict[int, Counter[str]] = {}
    for part, axis in _parts(rows):
        if count := _count(part, axis):
            found.setdefault(part.rank, Counter())[part.table] += count
    return [_sentence(rank, tables) for rank, tables in sorted(found.items())]


def _parts(rows: Rows) -> Iterator[tuple[Part, Axis]]:
    for (table, rank), parts in rows.parts.items():
        for part in parts if schema.TABLES[table].per_thread else ():
            if part.rows and part.thread is not None:
                yield part, axis_of(rows.axes, rank, int(part.thread.partition("-")[0]))


def _count(part: Part, axis: Axis) -> int:
    """How many rows of a part have an impossible time; read only where the footer says so."""
    if part.listed is not None and _plausible(part.listed.bounds, axis):
        return 0
    columns = [column.name for column in schema.TABLES[part.table].columns]
    limits = {
        name: limit
        for name in columns
        if (name in TIME_COLUMNS or name == "duration_ns") and (limit := axis.limits(name))
    }
    try:
        if not any(_strays(part, name, limit) for name, limit in limits.items()):
            return 0
        table = part.read(list(limits))
    except RunError:
        return 0  # reading it raises an error
    wrong = np.zeros(table.num_rows, bool)
    for name, (low, high) in limits.items():
        inside = pc.and_(pc.greater_equal(table[name], low), pc.less_equal(table[name], high))
        wrong |= ~pc.fill_null(inside, fill_value=True).to_numpy()
    return int(wrong.sum())


def _plausible(bounds: tuple[int | None, ...], axis: Axis) -> bool:
    """Whether a file's least and greatest instant and duration are known, and possible."""
    first, last, shortest, longest = bounds
    if first is None or last is None or not axis.possible[0] <= first <= last <= axis.possible[1]:
        return False
    if shortest is None or longest is None:
        return False
    return 0 <= shortest <= longest <= axis.farthest_ns


def _strays(part: Part, name: str, limits: tuple[int, int]) -> bool:
    ends = part.extremes(name)
    return ends is None or ends[0] < limits[0] or ends[1] > limits[1]


def _sentence(rank: int, tables: Counter[str]) -> str:
    counted = ", ".join(
        f"{count:,} {'row' if count == 1 else 'rows'} of {table}"
        for table, count in sorted(tables.items())
    )
    have, they = ("has", "it is") if tables.total() == 1 else ("have", "they are")
    return (
        f"rank {rank}: {counted} {have} impossible times (more than {_DAYS} days from the start of "
        f"the process, or a negative duration), so {they} shown at that start, or without a "
        "duration; the files are damaged, restore them from a copy or record again"
    )
