"""Rows of a thread or a rank, with the columns that are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.runs.errors import RunError

_THREAD_TYPE = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class PlacedRows:
    """Rows of one rank, and of one thread where the table is kept per thread."""

    rows: pa.Table
    rank: int
    thread: str | None


def columns_of(table: str) -> list[str]:
    """Returns columns of `Run.events(table)`: the schema's, the rank, and the thread where it is
    one's."""
    known = schema.TABLES.get(table)
    if known is None:
        raise RunError(f"no table {table!r}, expected one of {', '.join(schema.TABLES)}")
    own = [column.name for column in known.columns]
    return [*own, "rank", "thread"] if known.per_thread else [*own, "rank"]


def wanted_columns(table: str, columns: Sequence[str] | None) -> list[str]:
    """The columns asked for, all of them by default. RunError where the table has no such one."""
    known = columns_of(table)
    wanted = list(known if columns is None else columns)
    for name in wanted:
        if name not in known:
            raise RunError(
                f"table {table} has no column {name!r}, expected one of {', '.join(known)}"
            )
    return wanted


@lru_cache(maxsize=256)
def no_rows(table: str, read: tuple[str, ...], wanted: tuple[str, ...]) -> pa.Table:
    """No rows of a table, with the columns that are wanted of those that are read."""
    shape = schema.TABLES[table].arrow()
    empty = pa.schema([shape.field(name) for name in read]).empty_table()
    return with_place(PlacedRows(empty, 0, None), wanted)


def of_schema(rows: pa.Table, shape: pa.Schema) -> pa.Table:
    """The rows with a schema, which mostly has their types already."""
    if rows.schema.types == shape.types:
        return pa.Table.from_arrays(rows.columns, schema=shape)
    return rows.cast(shape)


def with_place(piece: PlacedRows, wanted: Sequence[str]) -> pa.Table:
    """The wanted columns, rank and thread among them where they are wanted."""
    rows, count = piece.rows, piece.rows.num_rows
    if "rank" in wanted:
        field = pa.field("rank", pa.int32(), metadata={"unit": "rank"})
        rows = rows.append_column(field, pa.array(np.full(count, piece.rank, np.int32)))
    if "thread" in wanted and "thread" not in rows.column_names:
        ids = pa.array([] if piece.thread is None else [piece.thread], pa.string())
        place = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ids)
        rows = rows.append_column(pa.field("thread", _THREAD_TYPE), place)
    return rows.select(wanted)
