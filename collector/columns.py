"""From fields of journal records to Arrow columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .journal_reader import Records
from .schema import Table


def self_times(rows: Records, duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """Duration less that of direct children, ns. `rows` sorted by start, parents first.

    The parent of a row of depth d is the last row of depth d-1 that starts no later, provided it
    reaches as far; a row whose parent was filtered out takes from no one.
    """
    depths, starts = rows["depth"].astype(np.int64), rows["start"].astype(np.int64)
    ends = starts + duration
    result = duration.copy()
    for depth in range(1, int(depths.max(initial=0)) + 1):
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


def codes_of(ids: NDArray[np.uint32], count: int) -> tuple[NDArray[np.int32], list[int]]:
    """Codes into the list of the ids present. An id past the table's end counts as empty."""
    safe = np.where(ids < count, ids, 0)
    present = np.zeros(count, bool)
    present[safe] = True
    code_of = np.cumsum(present, dtype=np.int32) - 1
    return code_of[safe].astype(np.int32), np.flatnonzero(present).tolist()


def dictionary_column(codes: NDArray[np.int32], texts: list[str]) -> pa.DictionaryArray:
    """A dictionary array; equal texts share an entry."""
    entries: dict[str, int] = {}
    merged = np.array([entries.setdefault(t, len(entries)) for t in texts], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(merged[codes] if len(texts) else codes), pa.array(list(entries), pa.string())
    )


def enum_column(values: NDArray[np.uint8], kind: Any) -> pa.DictionaryArray:
    """Numbers of an IntEnum that counts from 0, as their names."""
    names = [member.name for member in kind]
    codes = np.minimum(values, len(names) - 1).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))


def to_table(table: Table, columns: dict[str, Any]) -> pa.Table:
    """Columns by name as a table of the schema."""
    schema = table.arrow()
    arrays = [pa.array(columns[f.name]).cast(f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def frames(text: str) -> list[dict[str, Any]]:
    """The frames of a stack's text, as the stack table holds them."""
    frames = []
    for line in text.split("\n"):
        file, number, function = [*line.split("\t"), "", ""][:3]
        frames.append(
            {"file": file, "line": int(number) if number.isdigit() else 0, "function": function}
        )
    return frames
