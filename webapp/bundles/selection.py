"""The files of a run that is to be made of another one: some of its ranks, some of its steps.

Unchanged files are copied byte for byte; changed ones are written again, by the code that
records. Rows that only a journal holds so far become files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.compaction.parquet import write_part
from lanescope.collector.compaction.short_threads import with_threads
from lanescope.collector.format import schema
from lanescope.webapp.runs.clock_axis import axis_of
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.parquet_parts import Part
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

Change = Callable[[str, pa.Table], pa.Table]
"""From the name of a table and some rows of it to what they become."""

Put = Callable[[str, BinaryIO, int], None]
"""Takes a file: its path below the run, its bytes, how many there are."""

_PIECE = 1 << 20
_EARLIEST, _LATEST = -(2**63), 2**63 - 1

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class Contents:
    """The parts of a run to keep, and how to change them."""

    run: Run
    ranks: Sequence[int]
    steps: tuple[int, int] | None = None  # [first, after the last)
    change: Change | None = None
    _spans: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    _numbered: bool = False  # a row with the number of a wanted step was met

    def write(self, put: Put) -> dict[str, schema.File]:
        """Hands out every file, sorted by rank and path; returns what the manifest says of them.

        RunError where a file does not have the checksum that the manifest has for it.
        """
        files: dict[str, schema.File] = {}
        with tempfile.TemporaryDirectory(prefix="lanescope-") as folder:
            for name, table, parts in self._files():
                whole = self.steps is None and self.change is None
                if whole and self._is_file(name, parts):
                    files[name] = self._copied(name, sum(part.rows for part in parts), put)
                    continue
                rows, threads = self._rows(table, parts)
                if rows is None:
                    continue
                made = Path(folder) / "part.parquet"
                files[name] = write_part(made, table, rows)
                if threads:
                    files[name]["threads"] = threads
                with made.open("rb") as file:
                    put(name, file, files[name]["bytes"])
        if self.steps is None:
            return files
        known = sorted({step for rank in self.ranks for step in self.run.steps(rank).index})
        wanted = range(*self.steps)
        if not self._numbered and not any(step in wanted for step in known):
            has = f"{known[0]} to {known[-1]}" if known else "none"
            raise RunError(
                f"no event has a step from {self.steps[0]} to {self.steps[1] - 1}; the run has "
                f"{has}"
            )
        return files

    def _files(self) -> Iterator[tuple[str, str, list[Part]]]:
        """(path, table, the parts it is made of); a rank's thread table after all else of it.

        Rows in memory come behind the files of their thread, and before the rows of a rank's file,
        as a reader of the run has them.
        """
        for rank in sorted(self.ranks):
            found: list[tuple[str, str, list[Part]]] = []
            for table, shape in schema.TABLES.items():
                parts = self.run.rows.parts.get((table, rank), ())
                if not shape.per_thread:
                    if parts:
                        name = f"{schema.rank_folder(rank)}/{table}.parquet"
                        found.append((name, table, list(parts)))
                    continue
                of_files: dict[str, list[Part]] = {part.name: [] for part in parts if part.name}
                for part in parts:
                    name = part.name or _free(part, of_files)
                    of_files.setdefault(name, []).append(part)
                found += [(name, table, of) for name, of in of_files.items()]
            yield from sorted(found, key=lambda one: (one[1] == schema.THREAD.name, one[0]))

    def _is_file(self, name: str, parts: list[Part]) -> bool:
        """Whether the parts are all of one file, as the manifest has it."""
        stretch = parts[0].stretch
        if stretch is None:
            return len(parts) == 1 and parts[0].files is not None
        listed = self.run.manifest["files"][name]
        rows = sum(part.rows for part in parts)
        return (rows, stretch.file_bytes) == (listed["rows"], listed["bytes"])

    def _copied(self, name: str, rows: int, put: Put) -> schema.File:
        files, expected = self.run.files, self.run.manifest["files"][name]
        try:
            with files.open(name) as file:
                digest = hashlib.sha256()
                while piece := file.read(_PIECE):
                    digest.update(piece)
                size = int(file.tell())
                written = schema.File(bytes=size, rows=rows, sha256=digest.hexdigest())
                if "threads" in expected:
                    written["threads"] = expected["threads"]
                if written != expected and (
                    self.run.manifest["complete"] or size == expected["bytes"]
                ):
                    raise RunError(
                        f"{files.named(name)} does not have the checksum that the manifest has "
                        "for it: it is damaged; restore it from a copy, or leave its rank out"
                    )
                file.seek(0)
                put(name, file, size)
        except OSError as error:
            if error.errno in _FULL:  # of the target: the caller reports it
                raise
            raise RunError(f"{files.named(name)}: cannot be read ({error})") from None
        return written

    def _rows(self, table: str, parts: list[Part]) -> tuple[pa.Table | None, dict[str, int]]:
        """The rows that are wanted, as they are to be; None where there are none. And of a file
        that short threads share, how many are whose."""
        columns = [column.name for column in schema.TABLES[table].columns]
        pieces, threads = [], {}
        for part in parts:
            rows = part.read(columns)
            if self.steps is not None:
                rows = self._within(part, rows)
            if rows.num_rows:
                pieces.append(rows)
                if part.stretch is not None:
                    threads[str(part.thread)] = rows.num_rows
        if not pieces:
            return None, {}
        rows = pa.concat_tables(pieces).unify_dictionaries().combine_chunks()
        rows = self.change(table, rows) if self.change is not None else rows
        if threads:
            rows = with_threads(rows, threads).combine_chunks()
        return (rows if rows.num_rows else None), threads

    def _within(self, part: Part, rows: pa.Table) -> pa.Table:
        """Rows of the steps that are wanted.

        By the number of the step where a row of the rank's own process has one, so that the ranks
        keep the same collectives; else by the instant. Threads get the extent of their remaining
        rows.
        """
        assert self.steps is not None
        if part.table == schema.THREAD.name:
            return self._threads(part.rank, rows)
        if not {"start_ns", "time_ns"} & set(rows.column_names):
            return rows
        own = part.thread in {t.thread for t in self.run.threads_of(part.rank) if t.role == "rank"}
        if own and "step" in rows.column_names:
            step = rows["step"].to_numpy()
            kept = rows.filter(pa.array((step >= self.steps[0]) & (step < self.steps[1])))
            self._numbered |= kept.num_rows > 0
        else:
            kept = rows.filter(pa.array(self._inside(part, rows)))
        if part.thread is not None and kept.num_rows:
            low, high = _extent(part.table, kept)
            before = self._spans.get((part.rank, part.thread), (low, high))
            self._spans[part.rank, part.thread] = min(low, before[0]), max(high, before[1])
        return kept

    def _inside(self, part: Part, rows: pa.Table) -> BoolArray:
        """Which rows begin in the time of the wanted steps of their rank."""
        assert self.steps is not None
        steps = self.run.steps(part.rank)
        before = steps.end_ns[steps.index < self.steps[0]]
        upto = steps.end_ns[steps.index < self.steps[1]]
        low = int(before[-1]) if len(before) else _EARLIEST
        high = int(upto[-1]) if len(upto) < len(steps) and len(upto) else _LATEST
        name = "start_ns" if "start_ns" in rows.column_names else "time_ns"
        if "pid" in rows.column_names:
            pids = rows["pid"].to_numpy()
        else:
            pids = np.full(rows.num_rows, int(str(part.thread).partition("-")[0]))
        inside: BoolArray = np.zeros(rows.num_rows, np.bool_)
        for pid in np.unique(pids).tolist():
            axis = axis_of(self.run.rows.axes, part.rank, pid)
            at = axis.instants(rows[name], self.run.origin_ns).to_numpy()
            inside |= (pids == pid) & (at >= low) & (at < high)
        return inside

    def _threads(self, rank: int, rows: pa.Table) -> pa.Table:
        """The thread table: where a thread has nothing left, it is where the others begin."""
        spans = {thread: span for (of, thread), span in self._spans.items() if of == rank}
        if not spans:
            return rows.slice(0, 0)
        first = min(low for low, _ in spans.values())
        extents = [spans.get(str(thread), (first, first)) for thread in rows["thread"].to_pylist()]
        for position, name in enumerate(("start_ns", "end_ns")):
            values = pa.array([span[position] for span in extents], pa.int64())
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), values)
        return rows


def manifest_of(contents: Contents, files: dict[str, schema.File]) -> schema.Manifest:
    """Returns the manifest of a run with these contents."""
    manifest, ranks = contents.run.manifest, set(contents.ranks)
    notes = list(manifest["notes"])
    if contents.steps is not None:
        first, after = contents.steps
        notes.append(f"only the steps {first} to {after - 1} were packed")
    return {
        **manifest,
        "notes": notes,
        "processes": [one for one in manifest["processes"] if one["rank"] in ranks],
        "files": files,
    }


def _free(part: Part, known: Container[str]) -> str:
    """A path that no other part of the thread's table has."""
    assert part.thread is not None
    folder = f"{schema.rank_folder(part.rank)}/{schema.thread_folder(part.thread)}"
    number = 0
    while (name := f"{folder}/{schema.part_file(part.table, number)}") in known:
        number += 1
    return name


def _extent(table: str, rows: pa.Table) -> tuple[int, int]:
    """First and last instant of some rows, on their own clock.

    A wait has the step in which it ended, and may have begun long before: it counts by its end.
    """
    name = "start_ns" if "start_ns" in rows.column_names else "time_ns"
    ends = rows[name]
    if "duration_ns" in rows.column_names:
        with contextlib.suppress(pa.ArrowInvalid):  # past int64: the start will do
            ends = pc.add_checked(ends, pc.fill_null(rows["duration_ns"], 0))
    low = pc.min(ends if table == schema.SYNC.name else rows[name]).as_py()
    return low, max(pc.max(ends).as_py(), low)
