"""Reads what a Parquet footer states of row groups, so that no footer can do harm.

pyarrow ends the process where the metadata of a column contradicts itself: its type is not the
schema's, a bound has another length than its type, a histogram another number of bins (C++
exceptions that nothing catches, pyarrow 26). Least and greatest values are therefore read here.

A footer is one struct of Thrift's compact protocol; the fields and their numbers are those of
parquet.thrift (apache/parquet-format).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MAX_FOOTER_BYTES = 4 << 20
"""Bytes of a footer that is read, in about 4 s: that of 300 million operators in one file."""

_TAIL = 8  # length of the footer, magic
_NEAR = 8 << 10  # read with the tail: most footers are shorter
_MAX_DEPTH = 16
_MAX_INTEGER_BYTES = 10  # bytes of 64 bits, seven in each
_BOOLEANS, _INTEGERS, _BINARY, _LISTS, _MAP, _STRUCT = (1, 2), (4, 5, 6), 8, (9, 10), 11, 12
_FIXED = {3: 1, 7: 8, 13: 16}  # bytes of a byte, a double, a UUID
_I32, _I64, _LIST = 5, 6, 9
_BYTES = {1: 4, 2: 8}
"""Bytes of a value by its physical type: INT32 and INT64."""

Ranges = Mapping[str, "Range"]
"""Statistics of the columns of a row group, by their names."""

_Wanted = Mapping[tuple[int, int], Callable[[], Any]]
"""How a field is read, by its number and type."""


class Range(NamedTuple):
    """Statistics of a column of integers in a row group."""

    least: int | None  # None: not stated, or without any value
    most: int | None
    nulls: int


def column_ranges(source: pa.NativeFile, columns: Set[str]) -> list[dict[str, Range]] | None:
    """Returns the stated statistics of integer columns, by row group.

    None where the footer cannot be read, or is longer than MAX_FOOTER_BYTES. Raises OSError.
    """
    found = _footer_bytes(source)
    if found is None:
        return None
    try:
        return _Reader(found, columns).file()
    except (IndexError, ValueError):
        return None


def _footer_bytes(source: pa.NativeFile) -> bytes | None:
    size = source.size()
    tail = source.read_at(min(size, _NEAR), max(size - _NEAR, 0))
    length = int.from_bytes(tail[-_TAIL:][:4], "little")
    if length > min(MAX_FOOTER_BYTES, size - _TAIL):
        return None
    if length + _TAIL > len(tail):
        tail = source.read_at(length + _TAIL, size - _TAIL - length)
    found: bytes = tail[len(tail) - _TAIL - length : len(tail) - _TAIL]
    return found


_UNSTATED = Range(None, None, 0)


def stated(
    source: pa.NativeFile, footer: pq.FileMetaData, columns: Set[str]
) -> tuple[tuple[int, Ranges], ...]:
    """Returns the rows of each row group, and what it states of integer columns. OSError."""
    rows = [int(footer.row_group(number).num_rows) for number in range(footer.num_row_groups)]
    found = column_ranges(source, columns)
    if found is None or len(found) != len(rows):
        return tuple((count, {}) for count in rows)
    return tuple(zip(rows, found, strict=True))


def value_range(rows: int, found: Ranges, column: str) -> tuple[int, int] | None:
    """Returns least and greatest value of a column in a row group; None without statistics.

    (1, 0), which holds nothing, where all values are null.
    """
    if (one := found.get(column)) is None:
        return None
    if one.least is None or one.most is None:
        return (1, 0) if one.nulls == rows else None
    return one.least, one.most


def extremes(groups: Iterable[tuple[int, Ranges]], column: str) -> tuple[int, int] | None:
    """Returns least and greatest value of a column in a file; None without statistics."""
    found = [value_range(rows, stated, column) for rows, stated in groups]
    known = [one for one in found if one is not None]
    if not known or len(known) != len(found):
        return None
    held = [one for one in known if one[0] <= one[1]] or known
    return min(low for low, _ in held), max(high for _, high in held)


def extent(found: Ranges) -> tuple[int | None, int | None]:
    """Returns the least start of a row group's rows, and an instant that none lasts beyond."""
    starts, durations = (found.get(column, _UNSTATED) for column in ("start_ns", "duration_ns"))
    if starts.most is None or durations.most is None or durations.nulls:
        return starts.least, None
    return starts.least, starts.most + durations.most


def checksum(source: pa.NativeFile) -> int | None:
    """Returns the CRC-32 of a file's footer; None without one of a length that is read. OSError."""
    found = _footer_bytes(source)
    return None if found is None else zlib.crc32(found)


class _Reader:
    """Thrift's compact protocol, from front to end. IndexError and ValueError where it is not."""

    def __init__(self, data: bytes, columns: Set[str]) -> None:
        self._data = data
        self._at = 0
        self._columns = columns
        integer, raw = self._integer, self._raw
        self._group: _Wanted = {(1, _LIST): lambda: self._structs(self._chunk)}
        self._column_chunk: _Wanted = {(3, _STRUCT): lambda: self._struct(self._metadata)}
        self._metadata: _Wanted = {
            (1, _I32): integer,  # type
            (3, _LIST): self._path,  # path_in_schema
            (12, _STRUCT): lambda: self._struct(self._statistics),
        }
        self._statistics: _Wanted = {
            (3, _I64): integer,  # null_count
            (5, _BINARY): raw,  # max_value
            (6, _BINARY): raw,  # min_value
        }

    def file(self) -> list[dict[str, Range]]:
        """A FileMetaData: its row groups."""
        groups = self._struct({(4, _LIST): lambda: self._structs(self._row_group)}).get(4, ())
        return [dict(filter(None, group)) for group in groups]

    def _row_group(self) -> list[tuple[str, Range] | None]:
        return list(self._struct(self._group).get(1, ()))

    def _chunk(self) -> tuple[str, Range] | None:
        """Reads a ColumnChunk: the statistics of a column that is asked for."""
        chunk = self._struct(self._column_chunk).get(3, {})
        width = _BYTES.get(chunk.get(1, -1))
        path, statistics = chunk.get(3, ()), chunk.get(12, {})
        if width is None or len(path) != 1 or path[0] not in self._columns or 3 not in statistics:
            return None
        most, least = statistics.get(5), statistics.get(6)
        if least is None or most is None or not len(least) == len(most) == width:
            return path[0], Range(None, None, statistics[3])
        low, high = (int.from_bytes(bound, "little", signed=True) for bound in (least, most))
        return (path[0], Range(low, high, statistics[3])) if low <= high else None

    def _struct(self, wanted: _Wanted) -> dict[int, Any]:
        """The fields of a struct that are wanted, by number and type; others are passed over."""
        found = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._integer()
            if read := wanted.get((number, kind)):
                found[number] = read()
            else:
                self._pass(kind, _MAX_DEPTH)
        return found

    def _structs(self, read: Callable[[], Any]) -> list[Any]:
        count, kind = self._elements()
        if kind != _STRUCT:
            raise ValueError
        return [read() for _ in range(count)]

    def _path(self) -> list[str]:
        count, kind = self._elements()
        if kind != _BINARY:
            raise ValueError
        return [self._raw().decode() for _ in range(count)]

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _unsigned(self) -> int:
        at = self._at
        self._skip_integer()
        result = 0
        for byte in reversed(self._data[at : self._at]):
            result = result << 7 | byte & 0x7F
        return result

    def _integer(self) -> int:
        coded = self._unsigned()
        return (coded >> 1) ^ -(coded & 1)

    def _elements(self) -> tuple[int, int]:
        """How many elements a list has, and of what type."""
        head = self._byte()
        count = head >> 4
        return (count if count < 15 else self._unsigned()), head & 15

    def _raw(self) -> bytes:
        at = self._skip(self._unsigned())
        return self._data[at : self._at]

    def _skip(self, count: int) -> int:
        """Where that begins which is passed over."""
        at = self._at
        self._at += count
        if self._at > len(self._data):
            raise IndexError
        return at

    def _skip_integer(self) -> None:
        data, at = self._data, self._at
        last = at + _MAX_INTEGER_BYTES
        while data[at] & 0x80:
            at += 1
            if at == last:
                raise ValueError
        self._at = at + 1

    def _pass(self, kind: int, deeper: int, *, field: bool = True) -> None:
        """Past a value; `field`: of a struct, where a Boolean is in its head."""
        if not deeper:
            raise ValueError
        if kind in _INTEGERS:
            self._skip_integer()
        elif kind == _BINARY:
            self._skip(self._unsigned())
        elif kind == _STRUCT:
            while head := self._byte():
                if not head >> 4:
                    self._skip_integer()
                self._pass(head & 15, deeper - 1)
        elif kind in _LISTS:
            count, one = self._elements()
            for _ in range(count):
                self._pass(one, deeper - 1, field=False)
        elif kind == _MAP:
            if count := self._unsigned():
                types = self._byte()
                for _ in range(count):
                    self._pass(types >> 4, deeper - 1, field=False)
                    self._pass(types & 15, deeper - 1, field=False)
        elif kind in _BOOLEANS:
            self._skip(0 if field else 1)
        elif kind in _FIXED:
            self._skip(_FIXED[kind])
        else:
            raise ValueError


MAX_DECODED_BYTES = 1 << 30
"""Bytes of the rows of one file, and of all files that hold MAX_FACTOR their size together."""

MAX_FACTOR = 250
"""An operator has at least one byte on disk and less than 200 in memory."""

_COLUMNS = 64
"""More than any table has; each makes a file take longer to open."""

_CELL = 4
"""Bytes of a value in memory, at the least."""


def decoded_bytes(footer: pq.FileMetaData) -> int:
    """Returns bytes that a file's rows take in memory, by its footer.

    Row groups are asked, their columns are not: where the sizes in a damaged footer do not fit a
    column's type, pyarrow ends the process.
    """
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    stated = sum(int(group.total_byte_size) for group in groups)
    return max(stated, _CELL * int(footer.num_rows) * int(footer.num_columns))


def opened(source: pa.NativeFile) -> pq.ParquetFile:
    """Returns a Parquet file whose texts are read as dictionaries. OSError, pa.ArrowException."""
    # What is asked of columns that are no texts, or not there, is passed over: to look first which
    # are takes as long as to open the file.
    file = pq.ParquetFile(source, read_dictionary=range(_COLUMNS))
    if file.metadata.num_columns > _COLUMNS:
        raise pa.ArrowInvalid(f"it has {file.metadata.num_columns} columns")
    return file


def decoded_texts(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Returns a column of dictionaries as texts. pa.ArrowInvalid where these would take too
    much."""
    size = sum(_text_bytes(chunk) for chunk in column.chunks)
    if size > MAX_DECODED_BYTES:
        raise pa.ArrowInvalid(f"its texts would take {size >> 20} MiB")
    return column.cast(kind)


def _text_bytes(array: pa.Array) -> int:
    """Bytes of all texts of an array, each as often as it occurs."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _text_bytes(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(_text_bytes(one) for one in array.flatten())
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    lengths = pc.cast(pc.binary_length(array.dictionary), pa.int64())
    return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
