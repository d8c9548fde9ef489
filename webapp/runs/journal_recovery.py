"""Journals that no one turned into Parquet: of processes that died, or are still recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lanescope.collector.compaction.decode import Decoder
from lanescope.collector.compaction.journal_folders import has_ended
from lanescope.collector.compaction.process_placement import (
    axis_reference,
    first_ordinal,
    process_entry,
    with_process,
)
from lanescope.collector.compaction.reader import (
    JournalError,
    ProcessLog,
    read_process,
    segment_names,
)
from lanescope.collector.compaction.short_threads import sharing
from lanescope.collector.format import schema
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.manifest import check_groups, check_process
from lanescope.webapp.runs.parquet_parts import Part


@dataclass
class RecoveredJournals:
    """What the journals hold beyond the files."""

    parts: list[Part] = field(default_factory=list)
    processes: list[schema.Process] = field(default_factory=list)  # with those of the manifest
    lost: list[str] = field(default_factory=list)  # sentences about what could not be recovered
    groups: dict[str, schema.Group] = field(default_factory=dict)
    world_size: int = 1  # as the processes knew it, where the manifest was never finished


def segments(files: Files) -> frozenset[str]:
    """Returns the names of the segments of all journals that are there now."""
    if files.folder is None:
        return frozenset()
    return segment_names(files.folder / schema.JOURNAL_FOLDER)


def leftovers(files: Files, manifest: schema.Manifest, parts: list[Part]) -> RecoveredJournals:
    """Returns rows recovered from `RUN/journal/<process>/`, beside the `parts` that are in files.

    Nothing is written: a run may be on a read-only medium. The rows are `Part`s in memory, in
    the local time of their process like those of the files. A bundle has no journals.
    """
    found = RecoveredJournals(processes=manifest["processes"])
    if files.folder is None:
        return found
    folder = files.folder / schema.JOURNAL_FOLDER
    try:
        left = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return found
    axis = manifest["axis"]
    for one in left:
        try:
            ended = has_ended(one)  # read before the log
            log = read_process(one)
            log.process["gone"] = ended and not log.process["closed"]
            process = process_entry(log.process, axis or axis_reference(log.process))
            world = max(manifest["world_size"], log.process["world_size"])
            check_process(process, world)
            found.world_size = max(found.world_size, world)
            groups = check_groups(log.process.get("groups", {}))
            if _recover(log, process["rank"], manifest["files"], parts, found):
                axis, found.processes = with_process(axis, found.processes, log.process)
            found.groups.update(groups)
        except (JournalError, RunError, OSError, pa.ArrowException, KeyError, TypeError) as error:
            found.lost.append(f"the journal of process {one.name} cannot be read ({error})")
    return found


def _recover(
    log: ProcessLog,
    rank: int,
    files: Mapping[str, schema.File],
    parts: list[Part],
    found: RecoveredJournals,
) -> bool:
    """Whether there was anything."""
    found.lost += log.damage
    known = [*parts, *found.parts]
    threads = _rank_table(rank, "thread", known)
    decoder = Decoder(log, _rank_table(rank, "stack", known), first_ordinal(log, threads))
    if decoder.is_empty():
        return False
    # A compactor that died may have made the file and not yet have dropped the records.
    shared = sharing(files, rank, decoder.pid)
    recovered = [
        Part(table, rank, thread, rows.num_rows, memory=rows)
        for thread, table, part, rows in decoder.thread_tables()
        if thread not in shared and _path(rank, thread, table, part) not in files
    ]
    recovered += [
        Part(table, rank, None, rows.num_rows, memory=rows)
        for table, rows in decoder.rank_tables().items()
    ]
    found.parts += recovered
    return True


def _path(rank: int, thread: str, table: str, part: int) -> str:
    folders = f"{schema.rank_folder(rank)}/{schema.thread_folder(thread)}"
    return f"{folders}/{schema.part_file(table, part)}"


def _rank_table(rank: int, table: str, parts: list[Part]) -> pa.Table | None:
    """The rank's rows so far, so that recovered ones get ids that are not taken."""
    columns = [column.name for column in schema.TABLES[table].columns]
    tables = [p.read(columns) for p in parts if p.rank == rank and p.table == table]
    return pa.concat_tables(tables) if tables else None
