"""All tables of a run, and its manifest, as metadata events of a Chrome trace.

Viewers skip metadata that they do not know. `lanescope import` makes the same run of them again,
also what a trace cannot show: accesses, locks, stacks, gradients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.exported_events import MANIFEST_EVENT, TABLE_EVENT
from lanescope.webapp.runs.run import Run

_BATCH_ROWS = 1 << 15
_BATCH_BYTES = 8 << 20
"""Half of what an import takes as one event."""


def table_events(run: Run, ranks: Sequence[int]) -> Iterator[str]:
    """Yields the manifest, then all tables of some ranks; tables of a rank's threads come last."""
    chosen = set(ranks)
    processes = [one for one in run.manifest["processes"] if one["rank"] in chosen]
    about = {"processes": processes, "files": {}, "origin_ns": run.origin_ns}
    yield _event(MANIFEST_EVENT, {**run.manifest, **about})
    for table in sorted(schema.TABLES.values(), key=lambda one: one.per_thread):
        columns = [column.name for column in table.columns]
        for rank in ranks:
            if not table.per_thread:
                yield from _batches(table.name, rank, None, run.events(table.name, rank))
                continue
            for rows in run.pieces(table.name, rank, columns=[*columns, "thread"]):
                thread = rows["thread"][0].as_py() if rows.num_rows else ""
                yield from _batches(table.name, rank, thread, rows)


def _batches(table: str, rank: int, thread: str | None, rows: pa.Table) -> Iterator[str]:
    rows = rows.select([c.name for c in schema.TABLES[table].columns])
    for first in range(0, rows.num_rows, _BATCH_ROWS):
        yield from _parts(table, rank, thread, rows.slice(first, _BATCH_ROWS))


def _parts(table: str, rank: int, thread: str | None, rows: pa.Table) -> Iterator[str]:
    """Yields rows as one event, or as several where one would be too large to be imported."""
    columns = {name: _values(rows[name]) for name in rows.column_names}
    event = _event(
        TABLE_EVENT, {"table": table, "rank": rank, "thread": thread, "columns": columns}
    )
    if len(event) <= _BATCH_BYTES or rows.num_rows == 1:
        yield event
        return
    half = rows.num_rows // 2
    yield from _parts(table, rank, thread, rows.slice(0, half))
    yield from _parts(table, rank, thread, rows.slice(half))


def _values(column: pa.ChunkedArray) -> Any:
    """Returns a column for JSON: texts by number, numbers that JSON lacks as text."""
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        coded = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
        return {"texts": coded.dictionary.to_pylist(), "codes": coded.indices.to_pylist()}
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        return [v if v is None or math.isfinite(v) else str(v) for v in values]
    return values


def _event(name: str, args: dict[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": 0, "args": args}, separators=(",", ":"))
