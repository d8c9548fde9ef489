"""Converts fields of journal records, numpy arrays and lists of texts to Arrow columns.

Goes through Arrow's buffers: the first call of `pyarrow.array` imports pandas, which takes half a
second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..format.columns import ARGS
from ..format.record_kinds import GradientScope
from ..format.schema import FRAME, INT32, INT64, Table
from .reader import Records

MAX_INT32 = 2**31 - 1


def numbers(
    values: NDArray[Any], kind: pa.DataType, missing: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Returns integers, floats or booleans as an array of `kind`; null where `missing`."""
    valid = None
    if missing is not None and missing.any():
        valid = _bits(~missing)
    if pa.types.is_boolean(kind):
        data = _bits(values)
    else:
        data = pa.py_buffer(np.ascontiguousarray(values, kind.to_pandas_dtype()))
    return pa.Array.from_buffers(kind, len(values), [valid, data])


def texts(values: Sequence[str | None]) -> pa.StringArray:
    """Returns texts as an array; None becomes null."""
    encoded = [(value or "").encode("utf-8", "replace") for value in values]
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(values) + 1)
    missing = np.array([value is None for value in values], bool)
    valid = _bits(~missing) if missing.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.StringArray.from_buffers(len(values), buffers[1], buffers[2], buffers[0])


def dictionary(codes: NDArray[np.int32], values: Sequence[str]) -> pa.DictionaryArray:
    """Returns texts by their codes; equal texts share an entry."""
    entries: dict[str, int] = {}
    merged = np.array([entries.setdefault(text, len(entries)) for text in values], np.int32)
    indices = numbers(merged[codes] if len(merged) else codes, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, texts(list(entries)))


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def self_times(rows: Records, duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns durations minus those of direct children, ns. `rows` by start, parents first.

    The parent of a row of depth d is the last row of depth d-1 that starts no later and ends no
    earlier; a row may lack one, because the parent was filtered.
    """
    depths, starts = rows["depth"].astype(np.int64), rows["start"].astype(np.int64)
    ends = starts + duration
    result = duration.copy()
    for depth in np.unique(depths).tolist():  # a damaged record may hold any number
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
    """Returns durations in ns (0 if unfinished), and which rows are unfinished."""
    unfinished = rows["end"] == 0
    duration = np.where(unfinished, 0, rows["end"] - rows["start"]).astype(np.int64)
    return duration, unfinished


def by_start(starts: NDArray[np.int64], depths: NDArray[np.uint16]) -> NDArray[np.intp]:
    """Returns the order by start, and of equal starts by depth: parents before children."""
    order = np.argsort(starts, kind="stable")  # nearly sorted, which makes this fast
    if (np.diff(starts[order]) == 0).any():
        order = np.lexsort((depths, starts))
    return order


def codes_of(ids: NDArray[np.uint32], count: int) -> tuple[NDArray[np.int32], list[int]]:
    """Returns codes, and the ids that they index; `count`: size of the table of texts.

    An id past the table's end counts as empty: a damaged record may hold any number.
    """
    safe = np.where(ids < count, ids, 0)
    present = np.zeros(count, bool)
    present[safe] = True
    code_of = np.cumsum(present, dtype=np.int32) - 1
    return code_of[safe].astype(np.int32), np.flatnonzero(present).tolist()


def enum_column(values: NDArray[np.uint8], kind: Any) -> pa.DictionaryArray:
    """Returns the names of members of an IntEnum that counts from 0."""
    names = [member.name for member in kind]
    return dictionary(np.minimum(values, len(names) - 1).astype(np.int32), names)


def frames_column(stacks: Sequence[str]) -> pa.ListArray:
    """Returns the column `frames` of the stack table for texts of stacks."""
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
    """Returns a table of the schema; columns are numpy or Arrow arrays, or lists of texts.

    Leaves out the column of arguments unless it is given.
    """
    schema = table.arrow()
    fields = [field for field in schema if field.name in columns or field.name != ARGS.name]
    arrays = [_column(columns[field.name], field.type) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=schema.metadata))


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, np.ndarray):
        return numbers(values, kind)
    return texts(values).cast(kind)


def integers(column: pa.DictionaryArray) -> pa.Array:
    """Returns numbers from 0 on that are written as texts; null for other texts."""
    found = [whole_number(text) for text in column.dictionary.to_pylist()]
    values = np.array([-1 if one is None else one for one in found], np.int32)
    values = values[column.indices.to_numpy()]
    return numbers(values, INT32, values == -1)


def whole_number(text: str, most: int = MAX_INT32) -> int | None:
    """Returns a text's number, from 0 to `most`; None for another text.

    A damaged record may refer to any text.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None


def with_hashes(rows: Records) -> tuple[Records, pa.Array, pa.Array]:
    """Separates HASHES records: returns gradient records, their gradient and parameter hashes."""
    hashed = (rows["scope"] & GradientScope.HASHES) != 0
    known = {_gradient_key(row): row for row in rows[hashed]}
    rows = rows[~hashed]
    hashes = np.zeros((2, len(rows)), np.int64)
    missing = np.ones((2, len(rows)), bool)
    for position, row in enumerate(rows if known else ()):
        found = known.get(_gradient_key(row))
        if found is not None:
            hashes[:, position] = found["sequence"], found["extra"]
            missing[:, position] = bool(found["scope"] & GradientScope.NONE), False
    return rows, numbers(hashes[0], INT64, missing[0]), numbers(hashes[1], INT64, missing[1])


def _gradient_key(row: np.void) -> tuple[int, int, int]:
    return int(row["name"]), int(row["aux"]), int(row["start"])


class TextColumns:
    """Columns from ids of a journal's texts, and the ids of stacks within the rank.

    `known_stacks` are the rows of the rank's stack table so far; a stack that is there keeps its
    id.
    """

    def __init__(self, texts: Sequence[str], known_stacks: pa.Table | None) -> None:
        self.texts = np.array(texts, dtype=object)
        self._stack_ids: dict[str, int] = {}
        for row in known_stacks.to_pylist() if known_stacks is not None else ():
            frames = (f"{f['file']}\t{f['line']}\t{f['function']}" for f in row["frames"])
            self._stack_ids["\n".join(frames)] = row["stack"]
        self._known = len(self._stack_ids)

    def __getitem__(self, identity: int) -> str:
        """Returns a text; an id past the end, of a damaged record, is empty."""
        return str(self.texts[identity]) if identity < len(self.texts) else ""

    def dictionary(self, ids: NDArray[np.uint32]) -> pa.DictionaryArray:
        """Returns the texts of ids."""
        codes, present = codes_of(ids, len(self.texts))
        return dictionary(codes, [self.texts[i] for i in present])

    def split(self, ids: NDArray[np.uint32], count: int) -> tuple[pa.DictionaryArray, ...]:
        """Returns `count` columns from texts whose parts are separated by tabs."""
        codes, present = codes_of(ids, len(self.texts))
        parts = [[*self.texts[i].split("\t"), *[""] * count][:count] for i in present]
        return tuple(dictionary(codes, [p[column] for p in parts]) for column in range(count))

    def signature(self, ids: NDArray[np.uint32]) -> tuple[pa.DictionaryArray, ...]:
        """Returns the columns shapes, dtypes and device."""
        return self.split(ids, 3)

    def stacks(self, ids: NDArray[np.uint32]) -> pa.Array:
        """Returns ids of the stack table; null where no stack was captured."""
        codes, present = codes_of(ids, len(self.texts))
        known = np.zeros(max(1, len(present)), np.int32)
        for position, identity in enumerate(present):
            if identity:
                known[position] = self.stack_id(self.texts[identity])
        return numbers(known[codes], INT32, ids == 0)

    def stack_id(self, text: str) -> int:
        """Returns the id of a stack, which a new one gets."""
        return self._stack_ids.setdefault(text, len(self._stack_ids))

    def new_stacks(self) -> list[tuple[str, int]]:
        """Returns (text, id) of the stacks that were not known at first."""
        return list(self._stack_ids.items())[self._known :]
