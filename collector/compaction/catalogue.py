"""Writes the catalogue of a run's files, see `format/catalogue.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..format.catalogue import CATALOGUE, WORDS_OF, WORTH_LISTING
from ..format.columns import TIME_COLUMNS
from ..format.file_names import PART_CATALOGUE, named_parts
from ..format.record_kinds import MAX_TIME_NS
from ..format.schema import TABLES, THREAD, File, Process
from ..format.steps import PHASE_COLUMNS, steps_of, training_start
from . import parquet_footer
from .parquet import COMPRESSION

Opened = Callable[[str], pa.NativeFile]
"""Opens a file of the run, by its path below it. OSError."""


def write_catalogue(run: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the catalogue of a run directory that has files enough to be worth one.

    Raises OSError where the run cannot be written. Files that cannot be read are left out.
    """
    path = run / PART_CATALOGUE
    if len(manifest["files"]) < WORTH_LISTING:
        path.unlink(missing_ok=True)
        return

    def changed(name: str) -> int:
        return (run / name).stat().st_mtime_ns

    made = catalogue_of(lambda name: pa.OSFile(str(run / name), "rb"), manifest, changed)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(made)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def catalogue_of(
    opened: Opened, manifest: Mapping[str, Any], changed: Callable[[str], int] | None = None
) -> bytes:
    """Returns the catalogue of a run's files as a Parquet file.

    `changed` returns when a file was last modified, ns; without it the files have no such time.
    """
    rows: list[dict[str, Any]] = []
    phases: dict[int, dict[int, list[pa.Table]]] = {}
    for path, entry in sorted(manifest["files"].items()):
        named = named_parts(path)
        if named is None or named[2] not in TABLES:
            continue
        rank, thread, table = named
        try:
            with opened(path) as source, parquet_footer.opened(source) as file:
                row = _described(path, entry, table, thread, source, file)
                row["threads"] = list(entry.get("threads", row["threads"]))
                row["changed_ns"] = 0 if changed is None else changed(path)
                if table in WORDS_OF:
                    row["words"] = _words(file, WORDS_OF[table])
                if table == THREAD.name:
                    row["known_threads"] = _thread_rows(file)
                elif table == "phase" and thread is not None:
                    pid = int(thread.partition("-")[0])
                    of_rank = phases.setdefault(rank, {})
                    found = _phase_rows(file)
                    of_rank.setdefault(pid, []).append(found)
                    row["training_ns"] = training_start(found)
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            continue  # a reader finds out
        rows.append(row)
    _add_steps(rows, phases, manifest["processes"])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=CATALOGUE), sink, compression=COMPRESSION)
    return bytes(sink.getvalue())


def _described(
    path: str,
    entry: File,
    table: str,
    thread: str | None,
    source: pa.NativeFile,
    file: pq.ParquetFile,
) -> dict[str, Any]:
    """What the footer of a file states."""
    columns = {column.name for column in TABLES[table].columns}
    groups = parquet_footer.stated(source, file.metadata, columns)
    extents = [parquet_footer.extent(ranges) for _, ranges in groups]
    first, last = _bounds(groups, [name for name in TIME_COLUMNS if name in columns])
    shortest, longest = _bounds(groups, ["duration_ns"] if "duration_ns" in columns else [])
    return {
        "path": path,
        "threads": [] if thread is None else [thread],
        "rows": int(file.metadata.num_rows),
        "bytes": int(source.size()),
        "sha256": entry["sha256"][:16],
        "footer": parquet_footer.checksum(source),
        "decoded": parquet_footer.decoded_bytes(file.metadata),
        "group_rows": [rows for rows, _ in groups],
        "group_first_ns": [low for low, _ in extents],
        "group_last_ns": [high for _, high in extents],
        "first_ns": first,
        "last_ns": last,
        "shortest_ns": shortest,
        "longest_ns": longest,
    }


def _bounds(
    groups: Iterable[tuple[int, parquet_footer.Ranges]], columns: list[str]
) -> tuple[int | None, int | None]:
    """Least and greatest value of several columns, (0, 0) without any value; None where one of them
    has no statistics."""
    found = [parquet_footer.extremes(groups, name) for name in columns]
    held = [one for one in found if one is not None and one[0] <= one[1]]
    if None in found:
        return None, None
    if not held:
        return 0, 0
    return min(low for low, _ in held), max(high for _, high in held)


def _thread_rows(file: pq.ParquetFile) -> list[dict[str, Any]]:
    names = [column.name for column in THREAD.columns]
    rows: list[dict[str, Any]] = file.read(columns=names, use_threads=False).to_pylist()
    return rows


def _words(file: pq.ParquetFile, column: str) -> list[str]:
    """Texts that a column holds, one row group in memory at a time."""
    found: set[str] = set()
    for number in range(file.metadata.num_row_groups):
        texts = file.read_row_group(number, [column], use_threads=False)[column]
        found.update(text or "" for text in texts.unique().to_pylist())
    return sorted(found)


def _phase_rows(file: pq.ParquetFile) -> pa.Table:
    found = file.read(columns=list(PHASE_COLUMNS), use_threads=False)
    at = found.schema.get_field_index("kind")
    return found.set_column(at, "kind", found["kind"].cast(pa.string()))


def _add_steps(
    rows: list[dict[str, Any]],
    phases: Mapping[int, Mapping[int, list[pa.Table]]],
    processes: Iterable[Process],
) -> None:
    """Adds the steps of each rank to its thread table: of those with one process of their own.

    Where a rank has several, their clocks have to be put on one axis first.
    """
    own: dict[int, dict[int, int]] = {}
    for process in processes:
        if process["role"] == "rank":
            own.setdefault(process["rank"], {})[process["pid"]] = process["start_ns"]
    for row in rows:
        if row.get("known_threads") is None:
            continue
        named = named_parts(row["path"])
        assert named is not None
        starts = own.get(named[0], {})
        found = {pid: of for pid, of in phases.get(named[0], {}).items() if pid in starts}
        if len(found) != 1:
            continue
        [(pid, tables)] = found.items()
        whole = pa.concat_tables(tables)
        if not _possible(whole, starts[pid]):
            continue
        steps = steps_of(whole)
        columns = (steps.index.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist())
        row["steps_pid"] = pid
        row["steps"] = [
            {"step": step, "start_ns": start, "end_ns": end}
            for step, start, end in zip(*columns, strict=True)
        ]


def _possible(phases: pa.Table, start_ns: int) -> bool:
    """False where a reader would replace times, or find the file damaged."""
    starts = pc.min_max(phases["start_ns"]).as_py()
    durations = pc.min_max(phases["duration_ns"]).as_py()
    if any(phases[name].null_count for name in ("start_ns", "step")) or starts["min"] is None:
        return False
    shortest, longest = durations["min"] or 0, durations["max"] or 0
    return bool(
        abs(starts["min"] - start_ns) <= MAX_TIME_NS
        and abs(starts["max"] - start_ns) <= MAX_TIME_NS
        and shortest >= 0
        and longest <= MAX_TIME_NS
    )
