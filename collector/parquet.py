"""Writes one Parquet file of a run, and says what the manifest must say of it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .schema import TABLES, File

COMPRESSION = "zstd"
ROW_GROUP = 128 * 1024
"""Rows: a reader that wants one window of a long log reads a few of these groups."""

_DELTA = "DELTA_BINARY_PACKED"


def write_part(path: Path, table: str, rows: pa.Table) -> File:
    """Write rows of a table under a temporary name and rename it. Raises OSError.

    Integers are stored as differences to the row before: times, steps and ids grow slowly.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    columns = TABLES[table].columns
    integers = [c.name for c in columns if pa.types.is_integer(c.type)]
    try:
        pq.write_table(
            rows,
            temporary,
            compression=COMPRESSION,
            row_group_size=ROW_GROUP,
            use_dictionary=[c.name for c in columns if c.name not in integers],
            column_encoding=dict.fromkeys(integers, _DELTA),
        )
        data = temporary.read_bytes()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return {
        "bytes": len(data),
        "rows": rows.num_rows,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
