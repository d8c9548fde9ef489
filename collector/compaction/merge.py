"""What compaction adds to a run: part files, the rank's tables, the manifest's entries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..format.file_names import part_file, rank_folder, thread_folder
from ..format.schema import TABLES, File
from . import manifest as manifests
from .arrow_arrays import numbers
from .decode import Decoder
from .parquet import write_part
from .process_placement import joined

_KEYS = {
    "thread": ["thread"],
    "module": ["path", "class"],
    "stack": ["stack"],
    "storage": ["pid", "storage", "name"],
    "stall": ["pid", "time_ns", "native_id", "name"],
}
"""Columns that make a row of a rank's table the same row."""


class Pending:
    """Files written and not yet in the manifest. The caller holds the run's lock."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: dict[str, File] = {}

    def add_part(self, rank: int, thread: str, table: str, part: int, rows: pa.Table) -> None:
        """Write a part of a thread's table."""
        folder = self._run / rank_folder(rank) / thread_folder(thread)
        self._write(folder / part_file(table, part), table, rows)

    def commit(self, decoder: Decoder) -> None:
        """Write the rank's tables with what the decoder saw, and the manifest with all files."""
        process = decoder.log.process
        rank = self._run / rank_folder(decoder.log.rank)
        tables = decoder.rank_tables()
        for table, rows in tables.items():
            self._write(rank / f"{table}.parquet", table, _merged(rank, table, rows))
        manifest = manifests.read(self._run)
        latest = max(tables["thread"]["end_ns"].to_pylist(), default=0)
        process["end_ns"] = max(process["end_ns"], latest)
        axis, processes = joined(manifest["axis"], manifest["processes"], process)
        manifest["axis"], manifest["processes"] = axis, processes
        manifest["world_size"] = max(manifest["world_size"], int(process["world_size"]))
        manifest["groups"] = {**process.get("groups", {}), **manifest["groups"]}
        manifest["notes"] += [d for d in decoder.log.damage if d not in manifest["notes"]]
        manifest["files"].update(self._files)
        manifests.write(self._run, manifest)

    def note(self, sentence: str) -> None:
        """A sentence for the user, once."""
        manifest = manifests.read(self._run)
        if sentence not in manifest["notes"]:
            manifest["notes"].append(sentence)
            manifests.write(self._run, manifest)

    def rank_table(self, rank: int, table: str) -> pa.Table | None:
        """One of the rank's tables as it is; None before its first row."""
        path = self._run / rank_folder(rank) / f"{table}.parquet"
        return pq.read_table(path, partitioning=None) if path.exists() else None

    def _write(self, path: Path, table: str, rows: pa.Table) -> None:
        self._files[path.relative_to(self._run).as_posix()] = write_part(path, table, rows)


def _merged(rank: Path, table: str, rows: pa.Table) -> pa.Table:
    """The rank's rows so far and these; the newer one where the key is the same."""
    path = rank / f"{table}.parquet"
    if not path.exists():
        return rows
    keys = _KEYS[table]
    old = pq.read_table(path, schema=TABLES[table].arrow(), partitioning=None)
    new_keys = {tuple(row.values()) for row in rows.select(keys).to_pylist()}
    kept = [tuple(row.values()) not in new_keys for row in old.select(keys).to_pylist()]
    unchanged = old.filter(numbers(np.array(kept, bool), pa.bool_()))
    return pa.concat_tables([unchanged, rows]).combine_chunks()
