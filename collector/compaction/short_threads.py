"""Writes the rows of many short threads of a process into files that they share.

A program that starts thousands of threads would else leave a folder of files for each. The rows of
a thread are one stretch of a file; the manifest counts them, and a column names the thread. A file
with room is written again with more rows behind those it has: if a compactor dies before the
manifest lists them, the file is longer than listed, and only its first rows count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..format.file_names import SHORT_THREAD, part_file, rank_folder, shared_folder
from ..format.schema import TEXT, File
from .arrow_columns import numbers
from .chunks import Chunk
from .parquet import write_part
from .reader import ThreadLog

_OWN_FILES = 16
"""Threads of a process that have files of their own, however short they are."""

_MOST_RECORDS = 8192
"""Records up to which a thread is short: half a megabyte of journal."""

_FULL_ROWS = 1 << 15
"""Rows from which on a shared file takes no more threads: to write it again costs a few ms."""


def is_short(chunk: Chunk, thread: ThreadLog, ordinal: int) -> bool:
    """Returns True if a thread that ended shares files with others: all it left is one small chunk.

    `ordinal` is its position among the threads of its process id. The answer is the same each time
    that a step of compaction is repeated.
    """
    whole = not chunk.part and chunk.segments == len(thread.segments) and not len(chunk.rest)
    return whole and ordinal >= _OWN_FILES and len(chunk.records) <= _MOST_RECORDS


def sharing(files: Mapping[str, File], rank: int, pid: int) -> set[str]:
    """Returns the threads of a process whose rows are in shared files that are listed."""
    folder = f"{rank_folder(rank)}/{shared_folder(pid)}/"
    return {
        thread
        for path, file in files.items()
        if path.startswith(folder)
        for thread in file.get("threads", ())
    }


def with_threads(rows: pa.Table, threads: Mapping[str, int]) -> pa.Table:
    """Returns rows of several threads with the column that names them.

    `threads` has the number of each one's rows, in order.
    """
    codes = np.repeat(np.arange(len(threads), dtype=np.int32), list(threads.values()))
    column = pa.DictionaryArray.from_arrays(numbers(codes, pa.int32()), pa.array(list(threads)))
    return rows.append_column(pa.field(SHORT_THREAD, TEXT), column)


class SharedParts:
    """Collects rows of short threads of one table of a process, and writes them."""

    def __init__(self, run: Path, rank: int, pid: int, table: str) -> None:
        self._run, self._table = run, table
        self._folder = f"{rank_folder(rank)}/{shared_folder(pid)}"
        self._held: dict[str, pa.Table] = {}
        self._rows = 0

    @property
    def full(self) -> bool:
        """True once there are rows enough for a file."""
        return self._rows >= _FULL_ROWS

    def add(self, thread: str, rows: pa.Table) -> None:
        """Adds all rows of a thread."""
        self._held[thread] = rows
        self._rows += rows.num_rows

    def write(self, listed: Mapping[str, File]) -> dict[str, File]:
        """Writes what was added, behind the rows of the last `listed` file while that has room.

        Returns the file's entry in the manifest by its path. Raises OSError.
        """
        if not self._held:
            return {}
        threads = {thread: rows.num_rows for thread, rows in self._held.items()}
        rows = with_threads(pa.concat_tables(self._held.values()), threads)
        self._held, self._rows = {}, 0
        part = 0
        while (known := listed.get(name := self._path(part))) is not None:
            room = known["rows"] < _FULL_ROWS
            if room and (old := _rows_of(self._run / name, known)) is not None:
                rows = pa.concat_tables([old.cast(rows.schema), rows])
                threads = known["threads"] | threads
                break
            part += 1
        rows = rows.unify_dictionaries().combine_chunks()
        file = write_part(self._run / name, self._table, rows)
        file["threads"] = threads
        return {name: file}

    def _path(self, part: int) -> str:
        return f"{self._folder}/{part_file(self._table, part)}"


def _rows_of(path: Path, known: File) -> pa.Table | None:
    """Returns the rows that a file is listed with; None where it is damaged."""
    try:
        with pq.ParquetFile(path) as file:
            found = file.read(use_threads=False)
    except (OSError, pa.ArrowException):
        return None
    return found.slice(0, known["rows"]) if found.num_rows >= known["rows"] else None
