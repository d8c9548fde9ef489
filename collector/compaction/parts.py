"""Adds to a run what compaction makes: part files, the rank's tables, the manifest's entries."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..format.file_names import part_file, rank_folder, thread_folder
from ..format.schema import SOURCE, TABLES, File, Process
from ..journal.journal import HEADER_BYTES, PARTS_OFFSET, RecordKind
from . import manifest as manifests
from .arrow_columns import numbers
from .chunks import Chunk, chunks_of
from .decode import Decoder
from .parquet import write_part
from .process_placement import with_process
from .reader import RECORD_DTYPE, ProcessLog, Records, ThreadLog, concatenated
from .short_threads import SharedParts, is_short, sharing
from .source import source_rows

_KEYS = {
    "thread": ["thread"],
    "module": ["path", "class"],
    "stack": ["stack"],
    "storage": ["pid", "storage", "name"],
    "stall": ["pid", "time_ns", "native_id", "name"],
}
"""Key columns of a rank's tables: a newer row replaces the one with the same key."""


class PendingParts:
    """Collects files that were written and are not in the manifest yet.

    The caller holds the run's lock.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._files: dict[str, File] = {}
        self._shared: dict[tuple[int, int, str], SharedParts] = {}
        self._shared_before: dict[tuple[int, int], set[str]] = {}

    def add_part(self, rank: int, thread: str, table: str, part: int, rows: pa.Table) -> None:
        """Writes a part of a thread's table."""
        folder = self._run / rank_folder(rank) / thread_folder(thread)
        self._write(folder / part_file(table, part), table, rows)

    def add_ended(self, decoder: Decoder, thread: ThreadLog, chunks: Iterable[Chunk]) -> None:
        """Writes the rows of a thread that has ended; several short ones share their files."""
        rank, name = decoder.log.rank, decoder.thread_name(thread)
        if name in self._sharing(rank, decoder.pid):
            return  # a compactor died before it removed the records
        for chunk in chunks:
            short = is_short(chunk, thread, decoder.first_ordinal + thread.ordinal)
            for table, rows in decoder.decode(thread, chunk.records):
                if short:
                    self._add_shared((rank, decoder.pid, table), name, rows)
                else:
                    self.add_part(rank, name, table, chunk.part, rows)

    def _add_shared(self, key: tuple[int, int, str], thread: str, rows: pa.Table) -> None:
        shared = self._shared.setdefault(key, SharedParts(self._run, *key))
        shared.add(thread, rows)
        if shared.full:
            self._files |= shared.write(self._listed | self._files)

    def _sharing(self, rank: int, pid: int) -> set[str]:
        """Returns the threads of a process that shared files held before this step."""
        if (rank, pid) not in self._shared_before:
            self._shared_before[rank, pid] = sharing(self._listed, rank, pid)
        return self._shared_before[rank, pid]

    @cached_property
    def _listed(self) -> dict[str, File]:
        """Files that the manifest listed before this step."""
        files: dict[str, File] = manifests.load_manifest(self._run)["files"]
        return files

    def commit(self, decoder: Decoder) -> None:
        """Writes the rank's tables of the decoder, and the manifest with all files."""
        for shared in self._shared.values():
            self._files |= shared.write(self._listed | self._files)
        process = decoder.log.process
        rank = self._run / rank_folder(decoder.log.rank)
        tables = decoder.rank_tables()
        for table, rows in tables.items():
            self._write(rank / f"{table}.parquet", table, _merged(rank, table, rows))
        manifest = manifests.load_manifest(self._run)
        self._keep_source(decoder.log, tables["stack"], manifest["processes"])
        latest = max(tables["thread"]["end_ns"].to_pylist(), default=0)
        process["end_ns"] = max(process["end_ns"], latest)
        axis, processes = with_process(manifest["axis"], manifest["processes"], process)
        manifest["axis"], manifest["processes"] = axis, processes
        manifest["world_size"] = max(manifest["world_size"], int(process["world_size"]))
        manifest["groups"] = {**process.get("groups", {}), **manifest["groups"]}
        manifest["notes"] += [d for d in decoder.log.damage if d not in manifest["notes"]]
        manifest["files"].update(self._files)
        manifests.write_manifest(self._run, manifest)

    def _keep_source(self, log: ProcessLog, stacks: pa.Table, processes: list[Process]) -> None:
        """Writes the rank's source table where the process adds to it."""
        others = [
            one for one in processes if one["rank"] == log.rank and one["pid"] != log.process["pid"]
        ]
        known = self.rank_table(log.rank, SOURCE.name)
        rows = source_rows(log, stacks, known, others)
        if rows is not None:
            path = self._run / rank_folder(log.rank) / f"{SOURCE.name}.parquet"
            self._write(path, SOURCE.name, rows)

    def lists(self, log: ProcessLog) -> bool:
        """Returns True if the manifest has the process: some of its threads were compacted."""
        keys = ("rank", "pid", "start_ns")
        known = manifests.load_manifest(self._run)["processes"]
        return any(all(one[key] == log.process[key] for key in keys) for one in known)

    def note(self, sentence: str) -> None:
        """Adds a sentence for the user to the manifest, once."""
        manifest = manifests.load_manifest(self._run)
        if sentence not in manifest["notes"]:
            manifest["notes"].append(sentence)
            manifests.write_manifest(self._run, manifest)

    def rank_table(self, rank: int, table: str) -> pa.Table | None:
        """Returns one of the rank's tables; None before its first row."""
        path = self._run / rank_folder(rank) / f"{table}.parquet"
        return pq.read_table(path, partitioning=None) if path.exists() else None

    def _write(self, path: Path, table: str, rows: pa.Table) -> None:
        self._files[path.relative_to(self._run).as_posix()] = write_part(path, table, rows)


def _merged(rank: Path, table: str, rows: pa.Table) -> pa.Table:
    """Returns the rank's earlier rows and these; the newer one of equal keys."""
    path = rank / f"{table}.parquet"
    if not path.exists():
        return rows
    keys = _KEYS[table]
    old = pq.read_table(path, schema=TABLES[table].arrow(), partitioning=None)
    new_keys = {tuple(row.values()) for row in rows.select(keys).to_pylist()}
    kept = [tuple(row.values()) not in new_keys for row in old.select(keys).to_pylist()]
    unchanged = old.filter(numbers(np.array(kept, bool), pa.bool_()))
    return pa.concat_tables([unchanged, rows]).combine_chunks()


_KEPT = (RecordKind.COLLECTIVE, RecordKind.COLLECTIVE_END, RecordKind.MODULE, RecordKind.STORAGE)


def seal_threads(decoder: Decoder, pending: PendingParts) -> bool:
    """Compacts one chunk of every thread of a live process that has one; returns True if any had.

    The thread's used segments are replaced by one with the records that stay: those behind the
    cut, and those that later records complete (a collective without its end). A reader prefers
    that segment to all before it, so a death between the two steps neither loses nor doubles
    records.
    """
    rank, found = decoder.log.rank, False
    for thread in decoder.log.threads:
        chunk = next(chunks_of(thread, ended=False), None)
        if chunk is None:
            continue
        identity = decoder.thread_name(thread)
        for table, rows in decoder.decode(thread, chunk.records, collectives=False):
            pending.add_part(rank, identity, table, chunk.part, rows)
        pending.commit(decoder)
        _replace(thread, chunk, _thread_record(decoder, thread, chunk.records))
        found = True
    return found


def seal_ended(decoder: Decoder, pending: PendingParts) -> None:
    """Finishes the short threads of a live process that have ended, all with one commit.

    A program that starts thousands of them would else leave all their files to its end. Only
    threads with one segment: removing it is one step, before which a death repeats the same files.
    """
    sealed = []
    for thread in decoder.log.threads:
        if not thread.has_ended() or len(thread.segments) > 1 or thread.parts:
            continue
        whole = concatenated([thread.read(thread.segments[0])])
        if np.isin(whole["kind"], _KEPT).any():
            continue
        pending.add_ended(decoder, thread, [Chunk(0, whole, whole[:0], 1)])
        sealed.append(thread)
    if sealed:
        pending.commit(decoder)
    for thread in sealed:
        thread.segments[0].unlink()


def _thread_record(decoder: Decoder, thread: ThreadLog, records: Records) -> Records:
    """Returns a THREAD record that carries the time range of all records so far."""
    known = decoder.thread_row(thread)
    named = records[records["kind"] == RecordKind.THREAD]
    if known is None or not len(named):
        return np.empty(0, RECORD_DTYPE)
    record: Records = named[-1:].copy()
    record["start"], record["end"] = known["start_ns"], known["end_ns"]
    return record


def _replace(thread: ThreadLog, chunk: Chunk, name: Records) -> None:
    used = thread.segments[: chunk.segments]
    with used[-1].open("rb") as file:
        header = bytearray(file.read(HEADER_BYTES))
    struct.pack_into("<I", header, PARTS_OFFSET, chunk.part + 1)
    kept = chunk.records[np.isin(chunk.records["kind"], _KEPT)]
    temporary = used[-1].with_name(f".{used[-1].name}")
    temporary.write_bytes(bytes(header) + np.concatenate([name, kept, chunk.rest]).tobytes())
    os.replace(temporary, used[-1])
    for path in used[:-1]:
        path.unlink()
