"""Reads the catalogue of a run's files: what opening needs of them, without opening them.

It is untrusted input, as all of a run: what it says of a file is taken only where the manifest and
the file itself agree, and `Part.read` holds the file against it again. A catalogue that is missing,
damaged or of another version is as good as none: the files are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lanescope.collector.compaction import parquet_footer
from lanescope.collector.format import schema
from lanescope.collector.format.catalogue import CATALOGUE
from lanescope.collector.format.steps import Steps
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.types import Int64Array

_FIXED_BYTES = 1 << 20
_BYTES_PER_FILE = 64 << 10
"""Bytes of a catalogue, and of its rows in memory: those of a rank with a thousand threads."""

_GROUPS = ("group_rows", "group_first_ns", "group_last_ns")
_MEMBERS = {
    "known_threads": ("thread", "pid", "start_ns", "end_ns"),
    "steps": ("step", "start_ns", "end_ns"),
}
_NEVER_NULL = ("path", "rows", "bytes", "sha256", "changed_ns", "decoded", *_GROUPS)


@dataclass(eq=False, slots=True)  # not frozen, which takes three times as long to make
class ListedFile:
    """What the catalogue says of a file that is as it was when the catalogue was written."""

    _catalogue: Catalogue
    _row: int
    decoded: int  # bytes of its rows in memory
    training_ns: int | None  # least start of a phase of training
    bounds: tuple[int | None, int | None, int | None, int | None]
    """Least and greatest instant, least and greatest duration, ns; None: not known."""

    @property
    def groups(self) -> list[tuple[int, int | None, int | None]]:
        """Rows, least start and latest end of each row group, as `RowGroup` has them."""
        row = self._catalogue.rows.slice(self._row, 1).to_pydict()
        columns: list[Any] = [row[name][0] for name in _GROUPS]
        return list(zip(*columns, strict=True))

    @property
    def words(self) -> list[str] | None:
        """Texts of the column WORDS_OF of its table; None: not known."""
        return self._catalogue.words[self._row]

    @property
    def threads(self) -> list[dict[str, Any]] | None:
        """Rows of a rank's thread table; None where it is not one."""
        return self._catalogue.threads.get(self._row)

    @property
    def steps(self) -> tuple[int, Steps] | None:
        """Steps of the rank of a thread table on the clock of a process: its pid, and they."""
        return self._catalogue.steps.get(self._row)


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The catalogue of one run."""

    rows: pa.Table

    def find(self, files: Files, path: str, expected: schema.File) -> ListedFile | None:
        """Returns what the catalogue knows of a file; None where it is not listed, or has changed
        since. OSError."""
        said = self._by_path.get(path)
        if said is None:
            return None
        row, count, size, digest, changed, footer, decoded, training, *bounds = said
        if (count, size) != (expected["rows"], expected["bytes"]) or not digest:
            return None
        if not expected["sha256"].startswith(digest):
            return None
        now = files.stamp(path)
        if now[0] != size:
            return None
        if now[1] != changed:  # a copy has another time
            with files.open(path) as source:
                if footer is None or parquet_footer.checksum(source) != footer:
                    return None
        first, last, shortest, longest = bounds
        return ListedFile(self, row, decoded, training, (first, last, shortest, longest))

    @cached_property
    def _by_path(self) -> Mapping[str, tuple[Any, ...]]:
        names = ["rows", "bytes", "sha256", "changed_ns", "footer", "decoded"]
        names += ["training_ns"]
        names += ["first_ns", "last_ns", "shortest_ns", "longest_ns"]
        columns = [self.rows[name].to_pylist() for name in names]
        paths = self.rows["path"].to_pylist()
        return dict(zip(paths, zip(range(len(paths)), *columns, strict=True), strict=True))

    @cached_property
    def words(self) -> list[list[str] | None]:
        """Texts of the column WORDS_OF, by the row of the file."""
        found: list[list[str] | None] = self.rows["words"].to_pylist()
        return found

    @cached_property
    def threads(self) -> Mapping[int, list[dict[str, Any]]]:
        """Rows of the thread tables, by the row of their file."""
        found = self.rows["known_threads"].to_pylist()
        return {row: of for row, of in enumerate(found) if of is not None}

    @cached_property
    def steps(self) -> Mapping[int, tuple[int, Steps]]:
        """Process and steps on its clock, by the row of the rank's thread table."""
        values = pc.list_flatten(self.rows["steps"])
        columns = [_ints(pc.struct_field(values, name)) for name in _MEMBERS["steps"]]
        parents = _ints(pc.list_parent_indices(self.rows["steps"]))
        lengths = np.bincount(parents, minlength=self.rows.num_rows)
        ends = np.cumsum(lengths)
        pids = self.rows["steps_pid"].to_pylist()
        found = {}
        for row, pid in enumerate(pids):
            if pid is not None:
                part = slice(int(ends[row] - lengths[row]), int(ends[row]))
                found[row] = pid, Steps(*(column[part] for column in columns))
        return found


def read_catalogue(files: Files, count: int) -> Catalogue | None:
    """Returns the catalogue of a run of `count` files; None without one that can be believed."""
    most = _FIXED_BYTES + _BYTES_PER_FILE * count
    try:
        data = files.read(schema.PART_CATALOGUE, most)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            stated = (file.schema_arrow.metadata or {}).items()
            if not set((CATALOGUE.metadata or {}).items()) <= set(stated):
                return None
            if parquet_footer.decoded_bytes(file.metadata) > most:
                return None
            rows = file.read(use_threads=False).cast(CATALOGUE).combine_chunks()
        rows.validate(full=True)
    except (OSError, RunError, pa.ArrowException, UnicodeDecodeError, ValueError):
        return None
    return Catalogue(rows) if _makes_sense(rows) else None


def _makes_sense(rows: pa.Table) -> bool:
    """Whether each file is listed once, with the rows of its row groups."""
    nulls = [rows[name].null_count for name in _NEVER_NULL]
    nulls += [pc.list_flatten(rows[name]).null_count for name in ("group_rows", "words")]
    for name, fields in _MEMBERS.items():
        members = pc.list_flatten(rows[name])
        nulls += [members.null_count]
        nulls += [pc.struct_field(members, field).null_count for field in fields]
    if any(nulls) or pc.count_distinct(rows["path"]).as_py() != rows.num_rows:
        return False
    lengths = [_ints(pc.list_value_length(rows[name])) for name in _GROUPS]
    if not all(np.array_equal(one, lengths[0]) for one in lengths):
        return False
    within = np.zeros(int(lengths[0].sum()) + 1, np.int64)
    np.cumsum(_ints(pc.list_flatten(rows["group_rows"])), out=within[1:])
    ends = np.cumsum(lengths[0])
    if not np.array_equal(within[ends] - within[ends - lengths[0]], _ints(rows["rows"])):
        return False
    both = pc.equal(pc.is_valid(rows["steps"]), pc.is_valid(rows["steps_pid"]))
    return bool(pc.all(both, min_count=0).as_py())


def _ints(column: pa.ChunkedArray) -> Int64Array:
    """A column of integers without null. Not by `to_numpy`, which imports pandas, 0.2 s."""
    chunks = [chunk.cast(pa.int64()) for chunk in column.chunks if len(chunk)]
    arrays = [
        np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk)]
        for chunk in chunks
    ]
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
