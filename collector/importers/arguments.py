"""Keeps the arguments of events: bytes of JSON in a file, addressed by position and length."""

from __future__ import annotations

import mmap
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Raw
from numpy.typing import NDArray

from ..compaction import arrow_columns
from ..compaction.arrow_columns import numbers
from .import_limits import MAX_ARGUMENT_BYTES

_Rows = NDArray[np.void]

_NOTHING = frozenset({b"", b"{}", b"null", b"[]"})
_MIN_TEXT_BYTES = 5
"""Bytes of the shortest text that is not one of these."""

_PART_BYTES = 32 << 20
"""Of a file."""

_BATCH_BYTES = 2 << 20
"""Of texts that are read at once."""


class Arguments:
    """Appends arguments to a file, and reads those of many rows at once."""

    def __init__(self, path: Path, counts: Counter[str]) -> None:
        self._path = path
        self._file = path.open("w+b")
        self._counts = counts
        self._size = 0
        self._mapped: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process needs to read and add arguments."""
        self._file.flush()
        return {**self.__dict__, "_file": None, "_mapped": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes over the file of another process."""
        self.__dict__.update(state)
        self._file = self._path.open("a+b")

    def add(self, rows: _Rows, joined: bytes) -> None:
        """Keeps one text of JSON per row, `joined_texts`, and fills in `args_at` and `args_bytes`.

        Texts longer than MAX_ARGUMENT_BYTES are counted.
        """
        if not len(rows):
            return
        ends = np.append(np.flatnonzero(np.frombuffer(joined, np.uint8) == 0), len(joined))
        begins = np.append(0, ends[:-1] + 1)
        lengths = ends - begins
        for position in np.flatnonzero(lengths < _MIN_TEXT_BYTES).tolist():
            if joined[begins[position] : ends[position]] in _NOTHING:
                lengths[position] = 0
        long = lengths > MAX_ARGUMENT_BYTES
        if long.any():
            self._counts["unread_arguments_longer_than_64_KB"] += int(long.sum())
            lengths[long] = 0
        rows["args_at"], rows["args_bytes"] = self._size + begins, lengths
        self._size += self._file.write(joined)

    def append(self, other: Arguments) -> int:
        """Adds all arguments of another file. Returns the position of the first."""
        at = self._size
        with other._path.open("rb") as file:
            shutil.copyfileobj(file, self._file, _BATCH_BYTES)
        self._size += other._size
        return at

    def read(self, at: int, size: int) -> bytes:
        """Returns the arguments at a position of the file."""
        self._file.flush()
        return os.pread(self._file.fileno(), size, at)

    def column(self, rows: _Rows) -> pa.ChunkedArray:
        """Returns the arguments of rows; null: none. Text that is not UTF-8 is repaired.

        No arguments are added any more.
        """
        parts = [self._texts(rows[part]) for part in self.parts(rows, _BATCH_BYTES)]
        return pa.chunked_array(parts, pa.string())

    def parts(self, rows: _Rows, size: int = _PART_BYTES) -> Iterator[slice]:
        """Yields slices of rows, in order, with about `size` bytes of arguments each."""
        ends = np.cumsum(rows["args_bytes"].astype(np.int64))
        first = 0
        while first < len(rows):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + size, "right"))
            yield slice(first, max(last, first + 1))
            first = max(last, first + 1)

    def _texts(self, rows: _Rows) -> pa.StringArray:
        lengths = rows["args_bytes"].astype(np.int64)
        some = np.flatnonzero(lengths)
        if not len(some):
            return pa.nulls(len(rows), pa.string())
        if self._mapped is None:
            self._file.flush()
            self._mapped = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
        begins, ends = rows["args_at"][some], (rows["args_at"] + lengths)[some]
        place = np.arange(len(some))
        if (begins[1:] < ends[:-1]).any():
            begins, first, place = np.unique(begins, return_index=True, return_inverse=True)
            ends = ends[first]
        # Texts of the file and the bytes between them, in turn.
        bounds = np.column_stack([begins, ends]).ravel()
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self._mapped)]
        kind = pa.large_binary()
        texts = pa.LargeBinaryArray.from_buffers(kind, len(bounds) - 1, buffers)
        chosen = np.zeros(len(rows), np.int64)
        chosen[some] = 2 * place
        found = texts.take(numbers(chosen, pa.int64(), lengths == 0))
        if hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED)
        return _strings(found)


def joined_texts(raw: Sequence[bytes | Raw]) -> bytes:
    """Returns texts of JSON with zero bytes in between, without line breaks.

    No text within JSON has a line break or a zero byte.
    """
    whole = b"\0".join(raw)
    if whole.count(0) >= len(raw):  # a damaged file
        whole = b"\0".join([bytes(one).replace(b"\0", b"") for one in raw])
    # Lines are long: to look for their ends takes a third of what `translate` does.
    return whole.replace(b"\n", b"").replace(b"\r", b"") if b"\n" in whole else whole


def merged(first: bytes, second: bytes) -> bytes:
    """Returns the members of two JSON objects as one; of values that are no objects, the first."""
    if not (first.startswith(b"{") and second.startswith(b"{")):
        return first or second
    return first[:-1] + b"," + second[1:]


def _strings(texts: pa.LargeBinaryArray) -> pa.StringArray:
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        repaired = [one and one.decode("utf-8", "replace") for one in texts.to_pylist()]
        return arrow_columns.texts(repaired)
