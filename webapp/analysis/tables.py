"""Any table of a run as CSV or Parquet: the events as they are kept, or what an analysis says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from lanescope.collector.format import schema
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.plugin import changes, load, tables
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import plain_json

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet takes a text that begins with one of these for a formula, and may run it."""


MAX_ANSWER_ROWS = 2_000_000
"""Of a table that the page gives out or that is asked in SQL."""


def table_pieces(
    run: Run, name: str, ranks: Sequence[int] | None = None, baseline: Run | None = None
) -> Iterator[pa.Table]:
    """Yields a table in pieces of one schema; events rank by rank.

    Raises RunError for an unknown one, for one that needs a baseline without any, and where the two
    runs do not compare.
    """
    chosen = run.ranks if ranks is None else ranks
    if name in schema.TABLES:
        for rank in chosen:
            yield run.events(name, rank)
        return
    frame = _frame(run, name, baseline)
    if ranks is not None and "rank" in frame.columns:
        frame = frame[frame["rank"].isin(list(ranks))]
    yield pa.Table.from_pandas(frame, preserve_index=False)


def _frame(run: Run, name: str, baseline: Run | None) -> pd.DataFrame:
    """The table that an analysis makes."""
    if name in changes():
        if baseline is None:
            raise RunError(f"table {name} compares the run with a baseline: add --baseline RUN0")
        try:
            compared: pd.DataFrame = load(changes()[name])(baseline, run)
        except NotApplicable as reason:
            raise RunError(f"table {name}: {reason}") from None
        return compared
    if name not in tables():
        known = ", ".join((*schema.TABLES, *tables(), *changes()))
        raise RunError(f"no table {name!r}, expected one of {known}")
    found: pd.DataFrame = load(tables()[name])(run)
    return found


def write_csv(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    """Writes commas and names first; a text that would be a formula gets an apostrophe in front."""
    writer = None
    for piece in pieces:
        plain = spreadsheet(piece)
        if writer is None:
            writer = pyarrow.csv.CSVWriter(sink, plain.schema)
        writer.write_table(plain)
    if writer is not None:
        writer.close()


def write_parquet(pieces: Iterator[pa.Table], sink: BinaryIO) -> None:
    """Writes one Parquet file."""
    writer = None
    for piece in pieces:
        if writer is None:
            writer = pq.ParquetWriter(sink, piece.schema, compression="zstd")
        writer.write_table(piece)
    if writer is not None:
        writer.close()


def spreadsheet(table: pa.Table) -> pa.Table:
    """Returns a table of numbers and texts that no spreadsheet takes for formulas.

    Lists and structures become JSON.
    """
    for position, field in enumerate(table.schema):
        column = table.column(position)
        kind = field.type
        if pa.types.is_nested(kind):
            texts = [None if v is None else json_text(v) for v in column.to_pylist()]
            column = pa.chunked_array([pa.array(texts, pa.string())])
        if pa.types.is_dictionary(kind):
            chunks = [_safe(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
            column = pa.chunked_array(chunks, pa.string())
        elif _is_text(column.type):
            column = pa.chunked_array([_safe(chunk) for chunk in column.chunks], pa.string())
        names = table.column_names
        table = table.set_column(position, safe_text(names[position]), column)
    return table


def json_text(value: Any) -> str:
    """Returns a list or structure as JSON; NaN and the infinities in it are texts."""
    return json.dumps(plain_json(value), ensure_ascii=False)


def safe_text(text: str) -> str:
    """Returns a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


def _safe(texts: pa.Array) -> pa.Array:
    return pa.array(
        [None if text is None else safe_text(str(text)) for text in texts.to_pylist()], pa.string()
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )
