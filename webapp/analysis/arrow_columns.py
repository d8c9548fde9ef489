"""Columns of the largest tables: when rows end, rows by their texts, which texts there are.

A column of texts holds codes into a few of them, so a question about a text is asked once for each
text, and its answer is looked up for a hundred million rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array


def ends_ns(rows: pa.Table, run: Run) -> Int64Array:
    """Returns ends of rows with start_ns and duration_ns; of what had not ended, the run's.
    Nanoseconds."""
    ends = pc.add(rows["start_ns"], rows["duration_ns"]).fill_null(run.duration_ns)
    numbers: Int64Array = ends.to_numpy()
    return numbers


def having(column: pa.ChunkedArray, test: Callable[[str], object]) -> BoolArray:
    """Returns whether the text of each row fulfils a test; null counts as the empty text."""
    parts = [np.empty(0, np.bool_)]
    known: dict[object, BoolArray] = {}  # pieces of many threads share one list of texts
    for chunk in column.chunks:
        texts = chunk.dictionary
        buffers = (0 if part is None else part.address for part in texts.buffers())
        place = texts.offset, len(texts), *buffers
        if place not in known:
            known[place] = np.array([bool(test(text or "")) for text in (*texts.to_pylist(), None)])
        codes = chunk.indices.fill_null(len(texts))
        parts.append(known[place][codes.to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


@lru_cache(maxsize=1024)
def texts_of(run: Run, table: str, column: str, rank: int | None = None) -> frozenset[str]:
    """Returns the texts that occur in a column of a table kept per thread, of one rank or of
    all."""
    if rank is None:
        return frozenset().union(*(texts_of(run, table, column, one) for one in run.ranks))
    listed = run.rows.listed_words(table, column, rank)
    if listed is not None:
        return listed
    found: set[str] = set()
    for piece in run.pieces(table, rank, columns=[column]):
        for chunk in piece[column].chunks:
            used = chunk.dictionary.take(pc.unique(chunk.indices).drop_null())
            found.update(text for text in used.to_pylist() if text is not None)
    return frozenset(found)


def marks(run: Run, prefix: str, rank: int | None = None) -> list[dict[str, Any]]:
    """Returns the marks whose names begin with a prefix, of one rank or of all, by start: rank,
    thread, step, name, start_ns, module."""
    rows = _marks(run)
    wanted = having(rows["name"], lambda name: name.startswith(prefix))
    if rank is not None:
        wanted &= rows["rank"].to_numpy() == rank
    found: list[dict[str, Any]] = rows.filter(pa.array(wanted)).to_pylist() if wanted.any() else []
    return found


@lru_cache(maxsize=4)  # many questions look for a mark of their own
def _marks(run: Run) -> pa.Table:
    columns = ["rank", "thread", "step", "name", "start_ns", "module", "kind"]
    rows = run.events("phase", columns=columns)
    only = having(rows["kind"], schema.PhaseKind.mark.name.__eq__)
    return rows.filter(pa.array(only)).drop_columns("kind").sort_by("start_ns")


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Returns a data frame with plain texts instead of categories, whose codes differ between
    runs."""
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.name, plain)
    return table.to_pandas()


def phases_of_kind(
    run: Run,
    kind: schema.PhaseKind,
    rank: int | None = None,
    thread: str | None = None,
    columns: Sequence[str] = ("start_ns", "duration_ns"),
) -> pd.DataFrame:
    """Returns the phases of a kind, by start; `columns` of the table of phases, among them
    start_ns."""
    rows = run.events("phase", rank, thread, columns=[*columns, "kind"])
    rows = rows.filter(pa.array(having(rows["kind"], kind.name.__eq__)))
    return to_frame(rows.select([*columns])).sort_values("start_ns", kind="stable")


def ops_named(
    run: Run, rank: int, thread: str, columns: Sequence[str], test: Callable[[str], object]
) -> pd.DataFrame:
    """Returns the operators of a thread whose name fulfils a test, by start; `columns` of the table
    of operators, among them name and start_ns."""
    return _ops(run, rank, thread, columns, lambda piece: having(piece["name"], test))


def ops_of_stacks(
    run: Run, rank: int, thread: str, columns: Sequence[str], stacks: Sequence[int]
) -> pd.DataFrame:
    """Returns the operators of a thread that were called with one of some stacks, by start;
    `columns` of the table of operators, among them name, stack and start_ns."""
    return _ops(run, rank, thread, columns, lambda piece: np.isin(piece["stack"], stacks))


def _ops(
    run: Run,
    rank: int,
    thread: str,
    columns: Sequence[str],
    wanted: Callable[[pa.Table], BoolArray],
) -> pd.DataFrame:
    parts = []
    for piece in run.pieces("op", rank, thread, columns):
        chosen = wanted(piece)
        if chosen.any():  # most threads have none
            parts.append(to_frame(piece.filter(pa.array(chosen))))
    if not parts:
        return pd.DataFrame(columns=[*columns]).astype({"name": "str"})
    ops = pd.concat(parts)
    return ops.assign(name=ops["name"].astype("str")).sort_values("start_ns", ignore_index=True)


def stack_of(row: Any, column: str = "stack") -> int | None:
    """Returns the number of a stack in a row of a frame (`iloc` or `itertuples`); None without one,
    which pandas holds as NaN."""
    stack = getattr(row, column) if isinstance(row, tuple) else row[column]
    return None if pd.isna(stack) else int(stack)


def frame_ends_ns(slices: pd.DataFrame, until_ns: int) -> pd.Series:
    """Returns ends of rows with start_ns and duration_ns; of what had not ended, `until_ns`. int64,
    ns."""
    length = slices["duration_ns"].fillna(until_ns - slices["start_ns"])
    return slices["start_ns"] + length.astype("int64")


def plain_keys(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Returns columns as Python texts: pandas 3 merges no Arrow ones where a side has no rows."""
    return frame.astype(dict.fromkeys(names, "object"))
