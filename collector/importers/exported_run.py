"""Makes a run again of the tables that `lanescope export --to perfetto` writes into a trace."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ..compaction.parquet import write_part
from ..format.columns import ARGS, Table
from ..format.exported_events import MANIFEST_EVENT
from ..format.file_names import part_file, rank_folder, thread_folder
from ..format.manifest import File, Manifest, Process
from ..format.record_kinds import FORMAT_VERSION
from ..format.schema import TABLES
from .events import TraceEvent
from .import_limits import MAX_TABLE_ROWS, ImportRejected

_THREAD = re.compile(r"\d{1,10}-\d{1,9}")
_MAX_RANKS = 1_000_000


class _Rows(msgspec.Struct):
    table: str
    rank: int
    columns: dict[str, list[Any] | dict[str, list[Any]]]
    thread: str | None = None


class _Manifest(Manifest):
    origin_ns: int


class ExportedRun:
    """Writes the tables of one trace below `folder`, an event at a time."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self.folder = path, folder
        self._manifest: _Manifest | None = None
        self._of_ranks: dict[tuple[int, str], list[pa.Table]] = {}
        self._parts: Counter[Path] = Counter()
        self._count = 0
        self._files: dict[str, File] = {}

    def take(self, event: TraceEvent) -> None:
        """Takes the manifest, or rows of a table. Raises ImportRejected, OSError."""
        try:
            if event.name == MANIFEST_EVENT:
                self._manifest = msgspec.json.decode(event.args, type=_Manifest)
            else:
                self._take(msgspec.json.decode(event.args, type=_Rows))
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError) as error:
            raise self._damaged(str(error).partition("\n")[0][:200]) from None

    def manifest(self) -> dict[str, Any]:
        """Writes what was kept, and returns the manifest. Raises ImportRejected, OSError."""
        about = self._manifest
        if about is None:
            raise self._damaged("it has no manifest")
        if about["format"] > FORMAT_VERSION:
            raise ImportRejected(
                f"{self._path}: holds a run of format {about['format']}, expected {FORMAT_VERSION} "
                "or less; install a newer LaneScope"
            )
        for (rank, name), tables in self._of_ranks.items():
            self._write(Path(rank_folder(rank)) / f"{name}.parquet", name, pa.concat_tables(tables))
        axis = about["axis"]
        if axis is not None:
            # Times of the tables count from the first event.
            axis["wall_minus_monotonic_ns"] += about["origin_ns"]
        found = {key: value for key, value in about.items() if key != "origin_ns"}
        processes = [self._placed(one) for one in about["processes"]]
        return {
            **found,
            "processes": processes,
            "files": self._files,
        }

    def _take(self, found: _Rows) -> None:
        table = TABLES[found.table]
        fits = not table.per_thread or _THREAD.fullmatch(found.thread or "")
        if not 0 <= found.rank < _MAX_RANKS or not fits:
            raise ValueError(f"thread {found.thread!r} of rank {found.rank} cannot be")
        if self._manifest is None:
            raise ValueError("its manifest does not come first")
        written = {c.name for c in table.columns if c.since <= self._manifest["format"]}
        if missing := sorted(written - {ARGS.name} - set(found.columns)):
            raise ValueError(f"table {table.name} has no column {missing[0]!r}")
        rows = _table(table, found.columns)
        self._count += rows.num_rows
        if self._count > MAX_TABLE_ROWS:
            raise ValueError(f"it has more than {MAX_TABLE_ROWS:,} rows")
        if not table.per_thread:
            self._of_ranks.setdefault((found.rank, table.name), []).append(rows)
            return
        folder = Path(rank_folder(found.rank)) / thread_folder(found.thread or "")
        part = self._parts[folder / table.name]
        self._parts[folder / table.name] += 1
        self._write(folder / part_file(table.name, part), table.name, rows)

    def _write(self, path: Path, table: str, rows: pa.Table) -> None:
        self._files[path.as_posix()] = write_part(self.folder / path, table, rows)

    def _placed(self, process: Process) -> Process:
        """Returns a process whose clock is the axis of the tables."""
        tables = self._of_ranks.get((process["rank"], "thread"), [])
        rows = [row for table in tables for row in table.to_pylist()]
        own = [row for row in rows if row["pid"] == process["pid"]]
        process["start_ns"] = min((row["start_ns"] for row in own), default=0)
        process["end_ns"] = max((row["end_ns"] for row in own), default=0)
        process["clock"]["offset_ns"], process["clock"]["drift_ppb"] = 0, 0.0
        return process

    def _damaged(self, reason: str) -> ImportRejected:
        return ImportRejected(
            f"{self._path}: the run that LaneScope wrote into it is damaged ({reason}); export the "
            "run again"
        )


def _table(table: Table, columns: dict[str, Any]) -> pa.Table:
    """Returns rows of a table. Raises ValueError, TypeError, LookupError, OverflowError."""
    fields = [field for field in table.arrow() if field.name in columns]
    arrays = [_array(columns[field.name], field.type) for field in fields]
    rows = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=table.arrow().metadata))
    args = ARGS.name
    if args in rows.column_names and rows[args].null_count == rows.num_rows:
        rows = rows.drop_columns([args])  # as in a recording
    return rows


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, dict):
        codes = pa.array(values["codes"], pa.int32())
        found = pa.DictionaryArray.from_arrays(codes, pa.array(values["texts"], pa.string()))
        return found if kind == found.type else found.cast(kind)
    if pa.types.is_floating(kind):
        values = [float(one) if isinstance(one, str) else one for one in values]
    return pa.array(values, kind)
