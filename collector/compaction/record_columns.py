"""From fields of journal records to Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..format.record_kinds import GradientScope
from ..format.schema import FRAME, INT32, INT64, Table
from .arrow_arrays import dictionary, numbers, texts
from .reader import Records

MOST_INT32 = 2**31 - 1


def self_times(rows: Records, duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """Duration less that of direct children, ns. `rows` sorted by start, parents first.

    The parent of a row of depth d is the last row of depth d-1 that starts no later, provided it
    reaches as far; a row whose parent was filtered out takes from no one.
    """
    depths, starts = rows["depth"].astype(np.int64), rows["start"].astype(np.int64)
    ends = starts + duration
    result = duration.copy()
    for depth in np.unique(depths).tolist():  # a damaged record may bear any number
        children = np.flatnonzero(depths == depth)
        parents = np.flatnonzero(depths == depth - 1)
        if not len(children) or not len(parents):
            continue
        position = np.searchsorted(starts[parents], starts[children], "right") - 1
        parent = parents[np.maximum(position, 0)]
        inside = (position >= 0) & (ends[parent] >= ends[children])
        np.subtract.at(result, parent[inside], duration[children[inside]])
    return result


def durations(rows: Records) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Durations, ns, and which rows have none because they had not ended."""
    unfinished = rows["end"] == 0
    duration = np.where(unfinished, 0, rows["end"] - rows["start"]).astype(np.int64)
    return duration, unfinished


def by_start(starts: NDArray[np.int64], depths: NDArray[np.uint16]) -> NDArray[np.intp]:
    """The order that puts parents before children: by start, at the same start the outer first."""
    order = np.argsort(starts, kind="stable")  # nearly sorted, which makes this fast
    if (np.diff(starts[order]) == 0).any():
        order = np.lexsort((depths, starts))
    return order


def codes_of(ids: NDArray[np.uint32], count: int) -> tuple[NDArray[np.int32], list[int]]:
    """Codes into the list of the ids present, of a table of `count` texts.

    An id past the table's end counts as empty: of a damaged record it may be any number.
    """
    safe = np.where(ids < count, ids, 0)
    present = np.zeros(count, bool)
    present[safe] = True
    code_of = np.cumsum(present, dtype=np.int32) - 1
    return code_of[safe].astype(np.int32), np.flatnonzero(present).tolist()


def enum_column(values: NDArray[np.uint8], kind: Any) -> pa.DictionaryArray:
    """Numbers of an IntEnum that counts from 0, as their names."""
    names = [member.name for member in kind]
    return dictionary(np.minimum(values, len(names) - 1).astype(np.int32), names)


def frames_column(stacks: Sequence[str]) -> pa.ListArray:
    """The frames of stacks' texts, as the stack table holds them."""
    lines = [text.split("\n") for text in stacks]
    frames = [[*line.split("\t"), "", ""] for text in lines for line in text]
    files, functions = [f[0] for f in frames], [f[2] for f in frames]
    rows = np.array([whole_number(f[1]) or 0 for f in frames], np.int32)
    parts = [texts(files), numbers(rows, pa.int32()), texts(functions)]
    offsets = np.array([0, *accumulate(map(len, lines))], np.int32)
    return pa.ListArray.from_arrays(
        numbers(offsets, pa.int32()),
        pa.StructArray.from_arrays(parts, fields=list(FRAME)),
        type=pa.list_(FRAME),
    )


def to_table(table: Table, columns: dict[str, Any]) -> pa.Table:
    """Columns by name, as numpy or Arrow arrays or as lists of texts, as a table of the schema."""
    schema = table.arrow()
    return pa.Table.from_arrays([_column(columns[f.name], f.type) for f in schema], schema=schema)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        return numbers(values, kind)
    return texts(values).cast(kind)


def integers(column: pa.DictionaryArray) -> pa.Array:
    """Numbers of 0 and more that are written as texts; null where there is none."""
    found = [whole_number(text) for text in column.dictionary.to_pylist()]
    values = np.array([-1 if one is None else one for one in found], np.int32)
    values = values[column.indices.to_numpy()]
    return numbers(values, INT32, values == -1)


def whole_number(text: str, most: int = MOST_INT32) -> int | None:
    """Returns the number that a text says, from 0 to `most`; None where it says none.

    A text that a damaged record names may be any text.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def with_hashes(rows: Records) -> tuple[Records, pa.Array, pa.Array]:
    """Gradient records, and the hashes that records of their own tell of them."""
    hashed = (rows["scope"] & GradientScope.HASHES) != 0
    known = {_which(row): row for row in rows[hashed]}
    rows = rows[~hashed]
    hashes = np.zeros((2, len(rows)), np.int64)
    missing = np.ones((2, len(rows)), bool)
    for position, row in enumerate(rows if known else ()):
        found = known.get(_which(row))
        if found is not None:
            hashes[:, position] = found["sequence"], found["extra"]
            missing[:, position] = bool(found["scope"] & GradientScope.NONE), False
    return rows, numbers(hashes[0], INT64, missing[0]), numbers(hashes[1], INT64, missing[1])


def _which(row: np.void) -> tuple[int, int, int]:
    return int(row["name"]), int(row["aux"]), int(row["start"])
