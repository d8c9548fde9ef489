"""Rows of a run's tables, from its parts to one Arrow table on the run's axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector import schema
from lanescope.webapp.axis import Axis, axis_of
from lanescope.webapp.errors import RunError
from lanescope.webapp.parts import Part
from lanescope.webapp.threads import Thread

_SORT_KEYS = ("start_ns", "time_ns", "depth")  # a parent starts no later and is less deep
Window = tuple[int, int]
"""[t0, t1) in ns on the run's axis."""

_THREAD_TYPE = pa.dictionary(pa.int32(), pa.string())


def columns_of(table: str) -> list[str]:
    """Columns of `Run.events(table)`: the schema's, the rank, and the thread where it is one's."""
    known = schema.TABLES.get(table)
    if known is None:
        raise RunError(f"no table {table!r}, expected one of {', '.join(schema.TABLES)}")
    own = [column.name for column in known.columns]
    return [*own, "rank", "thread"] if known.per_thread else [*own, "rank"]


@dataclass(frozen=True)
class Rows:
    """Everything needed to read rows: the parts by table and rank, the clocks, the threads."""

    parts: Mapping[tuple[str, int], tuple[Part, ...]]
    axes: Mapping[tuple[int, int], Axis]
    threads: tuple[Thread, ...]
    origin_ns: int

    def read(
        self,
        table: str,
        ranks: Sequence[int],
        thread: str | None,
        columns: Sequence[str] | None,
        window: Window | None = None,
    ) -> pa.Table:
        """Rows of `ranks`, as `Run.events` promises them."""
        known = columns_of(table)
        wanted = list(known if columns is None else columns)
        for name in wanted:
            if name not in known:
                raise RunError(
                    f"table {table} has no column {name!r}, expected one of {', '.join(known)}"
                )
        shape = schema.TABLES[table]
        own = [column.name for column in shape.columns]
        needed = {*wanted, *_SORT_KEYS, "pid"}
        if "duration_ns" in needed or "self_ns" in needed:
            needed.add("start_ns")
        if window is not None:
            if "duration_ns" not in own or not shape.per_thread:
                raise RunError(f"rows of {table} have no extent to choose them by")
            needed |= {"start_ns", "duration_ns"}
        read = [name for name in own if name in needed]
        if shape.per_thread:
            pieces = [p for r in ranks for p in self._of_threads(table, r, thread, read, window)]
        else:
            pieces = [p for r in ranks for p in self._of_rank(table, r, read)]
        empty = pa.schema([shape.arrow().field(name) for name in read]).empty_table()
        pieces.insert(0, self._with_place(empty, shape, 0, None))
        aligned = [piece.cast(pieces[0].schema) for piece in pieces]
        return pa.concat_tables(aligned).unify_dictionaries().select(wanted)

    def within(self, table: str, ranks: Sequence[int], window: Window) -> int:
        """About how many rows touch the window, by the extents of row groups alone."""
        total = 0.0
        for rank in ranks:
            axes = {one.thread: axis_of(self.axes, rank, one.pid) for one in self.threads}
            for part in self.parts.get((table, rank), ()):
                if part.thread in axes:
                    low, high = axes[part.thread].around(window, self.origin_ns)
                    total += sum(group.about(low, high) for group in part.groups(low, high))
        return int(total)

    def _of_threads(
        self, table: str, rank: int, thread: str | None, read: list[str], window: Window | None
    ) -> Iterator[pa.Table]:
        by_thread: dict[str, list[Part]] = {}
        for part in self.parts.get((table, rank), ()):
            if part.rows and part.thread is not None:
                by_thread.setdefault(part.thread, []).append(part)
        for one in self.threads:
            if one.rank != rank or one.thread not in by_thread or thread not in (None, one.thread):
                continue
            axis = axis_of(self.axes, rank, one.pid)
            found = by_thread[one.thread]
            if window is None:
                rows = pa.concat_tables([part.read(read) for part in found])
                rows = axis.apply(rows, self.origin_ns)
            else:
                low, high = axis.around(window, self.origin_ns)
                pieces = [
                    part.read(read, groups) for part in found if (groups := part.groups(low, high))
                ]
                if not pieces:
                    continue
                rows = _touching(axis.apply(pa.concat_tables(pieces), self.origin_ns), window)
            yield self._with_place(_sorted(rows), schema.TABLES[table], rank, one)

    def _of_rank(self, table: str, rank: int, read: list[str]) -> Iterator[pa.Table]:
        for part in self.parts.get((table, rank), ()):
            rows = part.read(read)
            if "pid" not in rows.column_names:
                yield self._with_place(rows, schema.TABLES[table], rank, None)
                continue
            # The rows of one table have the clocks of several processes.
            for pid in pc.unique(rows["pid"]).to_pylist():
                mine = rows.filter(pc.equal(rows["pid"], pa.scalar(pid, pa.int64())))
                mine = axis_of(self.axes, rank, pid).apply(mine, self.origin_ns)
                yield self._with_place(mine, schema.TABLES[table], rank, None)

    def _with_place(
        self, rows: pa.Table, table: schema.Table, rank: int, thread: Thread | None
    ) -> pa.Table:
        count = rows.num_rows
        field = pa.field("rank", pa.int32(), metadata={"unit": "rank"})
        rows = rows.append_column(field, pa.array(np.full(count, rank, np.int32)))
        if table.per_thread:
            ids = pa.array([thread.thread] if thread else [], pa.string())
            place = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ids)
            rows = rows.append_column(pa.field("thread", _THREAD_TYPE), place)
        return rows


def _touching(rows: pa.Table, window: Window) -> pa.Table:
    """Rows that have an instant in [t0, t1); one that had not ended lasts for ever."""
    start = rows["start_ns"].to_numpy()
    end = pc.add(rows["start_ns"], rows["duration_ns"]).fill_null(window[1]).to_numpy()
    inside = (start < window[1]) & ((end > window[0]) | (start >= window[0]))
    return rows.filter(pa.array(inside))


def _sorted(rows: pa.Table) -> pa.Table:
    """By start, parents before children; rows that already are in order are not copied."""
    keys = [rows[name].to_numpy() for name in _SORT_KEYS if name in rows.column_names]
    if len(keys) == 1:
        in_order = bool(np.all(keys[0][1:] >= keys[0][:-1]))
    else:
        start, depth = keys
        later = start[1:] > start[:-1]
        in_order = bool(np.all(later | ((start[1:] == start[:-1]) & (depth[1:] >= depth[:-1]))))
    if in_order:
        return rows
    order = np.lexsort(keys[::-1])
    return rows.unify_dictionaries().combine_chunks().take(pa.array(order))
