"""What a Parquet file takes in memory, found out before it is taken.

A few bytes can stand for very many: values that repeat, groups of rows that share their bytes, a
long text that a million rows point to. Texts are therefore read as dictionaries, in which each
stands once, whatever the file says they are.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST = 1 << 30
"""Bytes of the rows of one file, and of all files that hold TIMES their size together."""

TIMES = 250
"""An operator has at least one byte on disk and less than 200 in memory."""

_COLUMNS = 256
"""More than any table has."""

_CELL = 4
"""Bytes of a value in memory, at the least."""


def decoded(footer: pq.FileMetaData) -> int:
    """Bytes that a file's rows take in memory, by its footer.

    Row groups are asked, their columns are not: where the sizes in a damaged footer do not fit a
    column's type, pyarrow ends the process.
    """
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    stated = sum(int(group.total_byte_size) for group in groups)
    return max(stated, _CELL * int(footer.num_rows) * int(footer.num_columns))


def opened(source: pa.NativeFile) -> pq.ParquetFile:
    """A Parquet file whose texts are read as dictionaries. OSError, pa.ArrowException."""
    # What is asked of columns that are no texts, or not there, is passed over: to look first which
    # are takes as long as to open the file.
    file = pq.ParquetFile(source, read_dictionary=range(_COLUMNS))
    if file.metadata.num_columns > _COLUMNS:
        raise pa.ArrowInvalid(f"it has {file.metadata.num_columns} columns")
    return file


def plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of dictionaries as texts. pa.ArrowInvalid where these would take too much."""
    size = sum(_text_bytes(chunk) for chunk in column.chunks)
    if size > MOST:
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
