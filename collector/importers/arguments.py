"""Keeps the arguments of events: bytes of JSON in a file, addressed by position and length."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Raw
from numpy.typing import NDArray

from .limits import MAX_ARGUMENT_BYTES
from .timestamps import Int64Array

Rows = NDArray[np.void]

_NOTHING = frozenset({b"", b"{}", b"null", b"[]"})
_BETWEEN = b"\0"
"""JSON cannot hold this byte."""

_PART_BYTES = 64 << 20


class Arguments:
    """Appends arguments to a file, and reads those of many rows at once."""

    def __init__(self, path: Path, counts: Counter[str]) -> None:
        self._path, self._file = path, path.open("w+b")
        self._counts = counts
        self._size = 0
        self._mapped: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a process that reads the same file needs to go on."""
        self._file.flush()
        return {**vars(self), "_file": None, "_mapped": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._file = self._path.open("r+b")
        self._file.seek(0, os.SEEK_END)

    def add(self, rows: Rows, raw: Sequence[bytes | Raw]) -> None:
        """Keeps one text of JSON per row, and fills in `args_at` and `args_bytes`.

        Longer ones than MAX_ARGUMENT_BYTES are counted.
        """
        texts = _without_line_breaks(raw)
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        for position in np.flatnonzero(lengths <= 4).tolist():
            if texts[position] in _NOTHING:
                texts[position] = b""
                lengths[position] = 0
        for position in np.flatnonzero(lengths > MAX_ARGUMENT_BYTES).tolist():
            self._counts["unread_arguments_longer_than_64_KB"] += 1
            texts[position] = b""
            lengths[position] = 0
        rows["args_at"] = self._size + np.cumsum(lengths) - lengths
        rows["args_bytes"] = lengths
        self._size += self._file.write(b"".join(texts))

    def read(self, at: int, size: int) -> bytes:
        """Returns the arguments at a position of the file."""
        self._file.flush()
        return os.pread(self._file.fileno(), size, at)

    def column(self, rows: Rows) -> pa.Array:
        """Returns the arguments of rows; null: none. Text that is not UTF-8 is repaired.

        No arguments are added any more.
        """
        lengths = rows["args_bytes"].astype(np.int64)
        if not lengths.any():
            return pa.nulls(len(rows), pa.string())
        if self._mapped is None:
            self._file.flush()
            self._mapped = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
        mapped = self._mapped
        begins = rows["args_at"].tolist()
        places = zip(begins, (rows["args_at"] + lengths).tolist(), strict=True)
        texts = [mapped[begin:end] for begin, end in places]
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
        return _strings(texts, lengths)

    def parts(self, rows: Rows) -> Iterator[slice]:
        """Yields slices of rows, in order, with about 64 MB of arguments each."""
        ends = np.cumsum(rows["args_bytes"].astype(np.int64))
        first = 0
        while first < len(rows):
            before = int(ends[first - 1]) if first else 0
            last = int(np.searchsorted(ends, before + _PART_BYTES, "right"))
            yield slice(first, max(last, first + 1))
            first = max(last, first + 1)


def merged(first: bytes, second: bytes) -> bytes:
    """Returns the members of two JSON objects as one; of values that are no objects, the first."""
    if not (first.startswith(b"{") and second.startswith(b"{")):
        return first or second
    return first[:-1] + b"," + second[1:]


def _without_line_breaks(raw: Sequence[bytes | Raw]) -> list[bytes]:
    """Returns JSON without line breaks and indentation: no text within JSON has a line break."""
    whole = _BETWEEN.join(raw)
    if b"\n" in whole:
        whole = b"".join(map(bytes.strip, whole.split(b"\n")))
    return whole.split(_BETWEEN) if raw else []


def _strings(texts: list[bytes], lengths: Int64Array) -> pa.Array:
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    valid = np.packbits(lengths > 0, bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    found = pa.BinaryArray.from_buffers(pa.binary(), len(texts), buffers)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        repaired = [one.decode("utf-8", "replace").encode() for one in texts]
        return _strings(repaired, np.array([len(one) for one in repaired], np.int64))
