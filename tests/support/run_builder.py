"""Builds run directories row by row through the real schema, without recording."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lanescope.collector.compaction.parquet import ROW_GROUP_ROWS
from lanescope.collector.format import schema

HOST = "boot-1/time-1"
START_NS = 5_000_000_000_000  # a monotonic clock some 80 minutes after boot

_DEFAULTS: dict[str, Any] = {"scope": "function", "kind": "user", "device": "cpu"}
_NULL_BY_DEFAULT = {
    "complete_ns",
    "sequence",
    "peer",
    "object",
    "root",
    "stack",
    "grad_hash",
    "param_hash",
    "owner",
    "collective",
    "cpu",
    "launch_ns",
    "expected",
    "args",
}


class Builder:
    """A run in the making: processes, threads and rows, then `write`."""

    def __init__(self, path: Path | str, *, world_size: int = 1, **manifest: Any) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = {
            "format": schema.FORMAT_VERSION,
            "id": "synthetic",
            "created": "2026-01-02T03:04:05+00:00",
            "command": ["python", "train.py"],
            "level": "timing",
            "options": {},
            "world_size": world_size,
            "complete": True,
            "exit_status": 0,
            "notes": [],
            "axis": {"clock_identity": HOST, "wall_minus_monotonic_ns": 0},
            "processes": [],
            "groups": {},
            "files": {},
            **manifest,
        }
        self._tables: dict[tuple[int, str | None, str], list[pa.Table]] = {}
        self._threads: dict[tuple[int, str], dict[str, Any]] = {}

    def process(self, rank: int = 0, pid: int | None = None, **fields: Any) -> int:
        """Lists a process and returns its pid; `clock` and `coverage` may be given in part."""
        pid = 1000 + rank if pid is None else pid
        clock = {
            "offset_ns": 0,
            "drift_ppb": 0.0,
            "uncertainty_ns": 0,
            "calibrated": True,
            "host": HOST,
            **fields.pop("clock", {}),
        }
        process = {
            "rank": rank,
            "pid": pid,
            "parent_pid": 1,
            "role": "rank",
            "host": "node-0",
            "engine": "portable",
            "start_ns": START_NS,
            "end_ns": START_NS,
            "closed": True,
            "ended": "exit",
            "exception": "",
            "argv": ["train.py"],
            "python": "3.11.7",
            "torch": "2.13.0",
            "modules_root": "",
            "clock": clock,
            "coverage": {},
            **fields,
        }
        self.manifest["processes"].append(process)
        return pid

    def thread(self, rank: int = 0, pid: int | None = None, ordinal: int = 0, **fields: Any) -> str:
        """Names a thread (and lists its process where that was not done) and returns its id."""
        pid = 1000 + rank if pid is None else pid
        if not any((p["rank"], p["pid"]) == (rank, pid) for p in self.manifest["processes"]):
            self.process(rank, pid)
        thread = schema.thread_id(pid, ordinal)
        self._threads[rank, thread] = {
            "thread": thread,
            "pid": pid,
            "native_id": pid + ordinal,
            "name": "MainThread" if ordinal == 0 else f"Thread-{ordinal}",
            "kind": "main" if ordinal == 0 else "python",
            **fields,
        }
        return thread

    def rows(self, table: str, rank: int, thread: str | None, /, **columns: Any) -> None:
        """Adds rows: each column a sequence, or one value for all rows. Missing ones are filled.

        Texts are "", numbers 0, flags false, what may be null is null; `self_ns` is the duration.
        """
        key = (rank, thread, table)
        self._tables.setdefault(key, []).append(filled(table, columns))
        if thread is not None and (rank, thread) not in self._threads:
            pid, _, ordinal = thread.partition("-")
            self.thread(rank, int(pid), int(ordinal))

    def row(self, table: str, rank: int, thread: str | None, /, **columns: Any) -> None:
        """Adds one row."""
        self.rows(table, rank, thread, **{name: [value] for name, value in columns.items()})

    def op(
        self,
        start: int,
        duration: int | None,
        name: str = "aten::mm",
        *,
        rank: int = 0,
        thread: str = "1000-0",
        **columns: Any,
    ) -> None:
        """Adds one op."""
        self.row("op", rank, thread, start_ns=start, duration_ns=duration, name=name, **columns)

    def phase(
        self,
        start: int,
        duration: int | None,
        kind: str = "backward",
        *,
        rank: int = 0,
        thread: str = "1000-0",
        name: str | None = None,
        **columns: Any,
    ) -> None:
        """Adds one phase, by default named like its kind."""
        self.row(
            "phase",
            rank,
            thread,
            start_ns=start,
            duration_ns=duration,
            kind=kind,
            name=kind if name is None else name,
            **columns,
        )

    def write(self) -> Path:
        """Writes thread tables, Parquet files and manifest; returns the run's path."""
        for rank in sorted({rank for rank, _ in self._threads}):
            threads = [self._thread_row(r, t) for (r, t) in self._threads if r == rank]
            columns = {name: [row[name] for row in threads] for name in threads[0]}
            self.rows("thread", rank, None, **columns)
        for (rank, thread, table), pieces in self._tables.items():
            folder = schema.rank_folder(rank)
            if thread is None:
                name = f"{folder}/{table}.parquet"
            else:
                name = f"{folder}/{schema.thread_folder(thread)}/{schema.part_file(table, 0)}"
            self._file(name, pa.concat_tables(pieces).unify_dictionaries().combine_chunks())
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.manifest, indent=1)
        (self.path / schema.MANIFEST).write_text(text, encoding="utf-8")
        return self.path

    def _thread_row(self, rank: int, thread: str) -> dict[str, Any]:
        row = dict(self._threads[rank, thread])
        low, high = [], []
        for (r, t, _), pieces in self._tables.items():
            if (r, t) != (rank, thread):
                continue
            whole = pa.concat_tables(pieces)
            start = whole["start_ns" if "start_ns" in whole.column_names else "time_ns"].to_numpy()
            if not len(start):
                continue
            end = start
            if "duration_ns" in whole.column_names:
                end = start + whole["duration_ns"].fill_null(0).to_numpy()
            low.append(int(start.min()))
            high.append(int(end.max()))
        row.setdefault("start_ns", min(low, default=START_NS))
        row.setdefault("end_ns", max(high, default=row["start_ns"]))
        return row

    def _file(self, name: str, table: pa.Table) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS, write_page_checksum=True
        )
        data = path.read_bytes()
        self.manifest["files"][name] = {
            "bytes": len(data),
            "rows": table.num_rows,
            "sha256": hashlib.sha256(data).hexdigest(),
        }


def filled(table: str, columns: dict[str, Any]) -> pa.Table:
    """Rows of a table, as `Builder.rows` takes them."""
    shape = schema.TABLES[table]
    count = max((len(v) for v in columns.values() if _is_sequence(v)), default=1)
    if "duration_ns" in columns:
        columns = {"self_ns": columns["duration_ns"], **columns}
    arrays = [_array(columns.get(c.name), c, count) for c in shape.columns]
    unknown = set(columns) - {c.name for c in shape.columns} - {"self_ns"}
    assert not unknown, f"{table} has no {unknown}"
    return pa.table(arrays, schema=shape.arrow())


def _is_sequence(value: object) -> bool:
    return isinstance(value, (Sequence, np.ndarray, pa.Array)) and not isinstance(value, str)


def _array(value: Any, column: schema.Column, count: int) -> pa.Array:
    if isinstance(value, pa.Array):
        return value.cast(column.type)
    if value is None:
        return _missing(column, count)
    return _encoded(value if _is_sequence(value) else [value] * count, column)


@lru_cache(maxsize=300)  # most columns of most rows
def _missing(column: schema.Column, count: int) -> pa.Array:
    if column.name in _NULL_BY_DEFAULT:
        return pa.nulls(count, column.type)
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        value = _DEFAULTS.get(column.name, "")
    else:
        value = pa.scalar(0).cast(column.type).as_py()
    return _encoded([value] * count, column)


def _encoded(values: Any, column: schema.Column) -> pa.Array:
    plain = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    array = pa.array(values, plain)
    return array.dictionary_encode() if pa.types.is_dictionary(column.type) else array
