"""Rows of a run's tables, from its parts to one Arrow table on the run's axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.catalogue import WORDS_OF
from lanescope.collector.format.steps import Steps
from lanescope.webapp.runs.clock_axis import Axis, axis_of
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.parquet_parts import Part
from lanescope.webapp.runs.placed_rows import (
    PlacedRows,
    no_rows,
    of_schema,
    wanted_columns,
    with_place,
)
from lanescope.webapp.runs.threads import Thread
from lanescope.webapp.runs.types import Int64Array, Window

SORT_KEYS = ("start_ns", "time_ns", "depth")  # a parent starts no later and is less deep

Equal = tuple[str, int]
"""A column of integers and the value that it has in the rows that are wanted."""

RowChange = Callable[[str, pa.Table], pa.Table]
"""Takes a table's name and rows of it; returns as many rows with the same columns."""

RowCut = Callable[[str, PlacedRows], PlacedRows]

_ALWAYS = (-(1 << 63), 1 << 63)
_PIECE = 1 << 20
"""Rows from which on a piece is not made longer."""

_SMALL_ROWS = 600_000
"""Rows of a table, of all ranks, up to which the columns that were read are kept: some 60 MB."""


@dataclass(frozen=True)
class Rows:
    """Everything needed to read rows: the parts by table and rank, the clocks, the threads."""

    parts: Mapping[tuple[str, int], Sequence[Part]]
    axes: Mapping[tuple[int, int], Axis]
    threads: tuple[Thread, ...]
    origin_ns: int
    changes: tuple[RowChange, ...] = ()
    """What is done to rows once they are read, one after the other."""
    cut: RowCut | None = None
    """Leaves out rows of a thread or a rank. It is given the columns of `SORT_KEYS` as well."""

    def changed_by(self, change: RowChange) -> Rows:
        """Returns the same rows with another change, after all others."""
        return replace(self, changes=(*self.changes, change))

    def read(
        self,
        table: str,
        ranks: Sequence[int],
        thread: str | None = None,
        columns: Sequence[str] | None = None,
        window: Window | None = None,
        equal: Equal | None = None,
    ) -> pa.Table:
        """Returns rows of `ranks`, as `Run.events` promises them."""
        wanted = wanted_columns(table, columns)
        shape = schema.TABLES[table]
        own = [column.name for column in shape.columns]
        needed = {*wanted, *SORT_KEYS, "pid"}
        if "duration_ns" in needed or "self_ns" in needed:
            needed.add("start_ns")
        if window is not None:
            if "duration_ns" not in own or not shape.per_thread:
                raise RunError(f"rows of {table} have no extent to choose them by")
            needed |= {"start_ns", "duration_ns"}
        if equal is not None:
            types = {column.name: column.type for column in shape.columns}
            if not shape.per_thread or not pa.types.is_integer(types.get(equal[0], pa.null())):
                raise RunError(f"rows of {table} cannot be chosen by {equal[0]}")
            needed.add(equal[0])
        read = [name for name in own if name in needed]
        pieces: Iterator[PlacedRows]
        if shape.per_thread:
            chosen = (window, equal)
            pieces = (p for r in ranks for p in self._of_threads(table, r, thread, read, *chosen))
        else:
            pieces = (p for r in ranks for p in self._of_rank(table, r, read))
        first = no_rows(table, tuple(read), tuple(wanted))
        if self.cut is not None:
            pieces = map(partial(self.cut, table), pieces)
        alike = [of_schema(with_place(piece, wanted), first.schema) for piece in pieces]
        found = alike[0] if len(alike) == 1 else pa.concat_tables([first, *alike])
        return self._changed(table, found.unify_dictionaries())

    def pieces(
        self,
        table: str,
        ranks: Sequence[int],
        thread: str | None,
        columns: Sequence[str],
        about: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yields rows of a table kept per thread, as `Run.pieces` promises them."""
        wanted = wanted_columns(table, columns)
        shape = schema.TABLES[table]
        if not shape.per_thread:
            raise RunError(f"rows of {table} are few, and not kept per thread")
        keys = SORT_KEYS if self.cut is not None else ()
        needed = {*wanted, *keys, *(["start_ns"] if "duration_ns" in wanted else [])}
        read = [column.name for column in shape.columns if column.name in needed]
        known = about is None and self._small(table)
        size = _PIECE if about is None else about
        for rank in ranks:
            for one, parts in self._threads_of(table, rank, thread):
                axis = axis_of(self.axes, rank, one.pid)
                portions: Iterable[pa.Table] = (
                    axis.apply(portion, self.origin_ns)
                    for part in parts
                    for portion in part.portions(read, size)
                )
                if known:
                    portions = [self._known(one, table, parts, axis, read)]
                for rows in portions:
                    piece = PlacedRows(rows, rank, one.thread)
                    if self.cut is not None:
                        piece = self.cut(table, piece)
                    yield self._changed(table, with_place(piece, wanted))

    def _changed(self, table: str, rows: pa.Table) -> pa.Table:
        for change in self.changes:
            rows = change(table, rows)
        return rows

    def within(
        self, table: str, ranks: Sequence[int], window: Window, thread: str | None = None
    ) -> int:
        """Returns about how many rows touch the window, by the extents of row groups alone."""
        total = 0.0
        for rank in ranks:
            for one, parts in self._threads_of(table, rank, thread):
                axis = axis_of(self.axes, rank, one.pid)
                low, high = axis.around(window, self.origin_ns)
                for part in parts:
                    groups = part.groups(low, high, axis.possible)
                    total += sum(group.about(low, high) for group in groups)
        return int(total)

    def listed_steps(self, rank: int) -> Steps | None:
        """Returns steps of a rank as the catalogue lists them; None where the phases have to be
        read."""
        phases = self.parts.get(("phase", rank), ())
        tables = self.parts.get((schema.THREAD.name, rank), ())
        listed = tables[0].listed if len(tables) == 1 else None
        if listed is None or listed.steps is None or any(p.listed is None for p in phases):
            return None
        pid, steps = listed.steps
        axis = axis_of(self.axes, rank, pid)
        low, high = axis.possible
        ends = np.concatenate([steps.start_ns, steps.end_ns])
        if np.any((ends < low) | (ends > high)) or np.any(steps.start_ns > steps.end_ns):
            return None
        if np.any(np.diff(steps.index) <= 0):
            return None
        starts, ends = (axis.readings(of, self.origin_ns) for of in (steps.start_ns, steps.end_ns))
        return Steps(steps.index, starts, ends)

    def listed_training(self, rank: int) -> list[int] | None:
        """Starts of training in the files of a rank, as the catalogue lists them; None: read."""
        found = []
        for part in self.parts.get(("phase", rank), ()):
            if part.listed is None or part.thread is None:
                return None
            if (start := part.listed.training_ns) is not None:
                axis = axis_of(self.axes, rank, int(part.thread.partition("-")[0]))
                found.append(axis.instant(start) - self.origin_ns)
        return found

    def listed_words(self, table: str, column: str, rank: int) -> frozenset[str] | None:
        """Returns texts of a column of a rank, as the catalogue lists them; None: they have to be
        read."""
        listed = [part.listed for part in self.parts.get((table, rank), ())]
        if WORDS_OF.get(table) != column:
            return None
        words = [None if one is None else one.words for one in listed]
        known = [one for one in words if one is not None]
        return frozenset().union(*known) if len(known) == len(words) else None

    def _of_threads(
        self,
        table: str,
        rank: int,
        thread: str | None,
        read: list[str],
        window: Window | None,
        equal: Equal | None,
    ) -> Iterator[PlacedRows]:
        small = self._small(table)
        for one, found in self._threads_of(table, rank, thread):
            axis = axis_of(self.axes, rank, one.pid)
            if small:
                rows = self._known(one, table, found, axis, read)
                if window is not None:  # what begins later is not looked at
                    ends = np.searchsorted(column_array(rows["start_ns"]), window[1])
                    rows = rows.slice(0, int(ends))
            elif window is None and equal is None:
                rows = axis.apply(_joined(found, read), self.origin_ns)
            else:
                span = axis.around(window, self.origin_ns) if window else _ALWAYS
                pieces = []
                for part in found:
                    groups = part.groups(*span, axis.possible)
                    if equal is not None:
                        groups = part.holding(groups, *equal)
                    if groups:
                        pieces.append(part.read(read, groups))
                if not pieces:
                    continue
                rows = axis.apply(pa.concat_tables(pieces), self.origin_ns)
            if equal is not None:
                rows = rows.filter(pc.equal(rows[equal[0]], equal[1]))
            if window is not None:
                rows = _touching(rows, window)
            yield PlacedRows(rows if small else _sorted(rows), rank, one.thread)

    def _small(self, table: str) -> bool:
        if table not in self._sizes:
            own = (parts for (name, _), parts in self.parts.items() if name == table)
            self._sizes[table] = sum(part.rows for parts in own for part in parts)
        return self._sizes[table] <= _SMALL_ROWS

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Rows of each table that was asked for."""
        return {}

    @cached_property
    def _columns(self) -> dict[tuple[str, int, str], dict[str, pa.ChunkedArray]]:
        """Of small tables, by table, rank and thread, the columns that were read."""
        return {}

    def _known(
        self, thread: Thread, table: str, parts: Sequence[Part], axis: Axis, read: Sequence[str]
    ) -> pa.Table:
        """Returns all rows of a thread in order, reading the columns that are not kept yet: forty
        questions read the same few. A second reader gets all others read as well, as more follow:
        to open the file takes longer than a column."""
        place = table, thread.rank, thread.thread
        known = self._columns.get(place, {})
        missing = {*read} - {*known}
        if missing:
            needed = {*missing, *SORT_KEYS, "start_ns"}
            every = [one.name for one in schema.TABLES[table].columns]
            own = [one for one in every if one in needed or (known and one not in known)]
            rows = _sorted(axis.apply(_joined(parts, own), self.origin_ns))
            known = {**known, **dict(zip(rows.column_names, rows.columns, strict=True))}
            self._columns[place] = known
        return pa.table({name: known[name] for name in read})

    def _threads_of(
        self, table: str, rank: int, thread: str | None
    ) -> Iterator[tuple[Thread, list[Part]]]:
        """Threads of a rank, or the one named, that have rows of a table, with their parts."""
        held = self._held.get((table, rank), {})
        if thread is None:
            yield from held.values()
        elif thread in held:
            yield held[thread]

    @cached_property
    def _held(self) -> Mapping[tuple[str, int], Mapping[str, tuple[Thread, list[Part]]]]:
        """By table and rank, in the order of `threads`: each of thousands is asked for alone."""
        threads: dict[int, list[Thread]] = {}
        for one in self.threads:
            threads.setdefault(one.rank, []).append(one)
        held: dict[tuple[str, int], dict[str, tuple[Thread, list[Part]]]] = {}
        for (table, rank), of_rank in self.parts.items():
            parts: dict[str, list[Part]] = {}
            for part in of_rank:
                if part.rows and part.thread is not None:
                    parts.setdefault(part.thread, []).append(part)
            if parts:
                known = threads.get(rank, ())
                own = {t.thread: (t, parts[t.thread]) for t in known if t.thread in parts}
                held[table, rank] = own
        return held

    def _of_rank(self, table: str, rank: int, read: list[str]) -> Iterator[PlacedRows]:
        for part in self.parts.get((table, rank), ()):
            rows = part.read(read)
            if "pid" not in rows.column_names:
                yield PlacedRows(rows, rank, None)
                continue
            # The rows of one table have the clocks of several processes.
            for pid in pc.unique(rows["pid"]).to_pylist():
                mine = rows.filter(pc.equal(rows["pid"], pa.scalar(pid, pa.int64())))
                mine = axis_of(self.axes, rank, pid).apply(mine, self.origin_ns)
                yield PlacedRows(mine, rank, None)


def _joined(parts: Sequence[Part], columns: Sequence[str]) -> pa.Table:
    return pa.concat_tables([part.read(columns) for part in parts])


def _touching(rows: pa.Table, window: Window) -> pa.Table:
    """Rows that have an instant in [t0, t1); one that had not ended lasts for ever."""
    start = rows["start_ns"].to_numpy()
    end = pc.add(rows["start_ns"], rows["duration_ns"]).fill_null(window[1]).to_numpy()
    inside = (start < window[1]) & ((end > window[0]) | (start >= window[0]))
    return rows.filter(pa.array(inside))


def _sorted(rows: pa.Table) -> pa.Table:
    """By start, parents before children; rows that already are in order are not copied."""
    names = [name for name in SORT_KEYS if name in rows.column_names]
    keys = [column_array(rows[name]) for name in names]
    if in_span_order(*keys):
        for name, key in zip(names, keys, strict=True):
            if rows[name].num_chunks > 1:
                # They are in one stretch now, so that no caller has to join them again.
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), pa.array(key))
        return rows
    order = np.lexsort(keys[::-1])
    return rows.unify_dictionaries().combine_chunks().take(pa.array(order))


def in_span_order(begins: Int64Array, depth: npt.NDArray[np.int16] | None = None) -> bool:
    """Returns whether rows are sorted by start, parents before children."""
    if depth is None:
        return bool(np.all(begins[1:] >= begins[:-1]))
    # Few begin at once, so the depth matters at few places only.
    doubtful = np.flatnonzero(begins[1:] <= begins[:-1])
    same = begins[doubtful + 1] == begins[doubtful]
    return bool(np.all(same & (depth[doubtful + 1] >= depth[doubtful])))


def column_array(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Returns a column without null as an array, not copied where it is in one piece."""
    found: npt.NDArray[Any]
    found = column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
    return found
