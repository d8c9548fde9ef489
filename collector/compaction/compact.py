"""Converts journals to Parquet, in a process of its own, while or after the program runs.

    python -m lanescope.collector.compaction.compact RUN

Each step leaves a run that opens: parts are written under temporary names and renamed, then the
manifest lists them, then their records are removed from the journal. Repeating a step after a
death in between writes the same files.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from ..format import schema
from ..format.file_names import JOURNAL_FOLDER
from . import manifest as manifests
from .catalogue import write_catalogue
from .chunks import chunks_of
from .clock_refine import narrow
from .decode import Decoder
from .journal_folders import UNREADABLE, has_ended, journal_folders, pid_of
from .parts import PendingParts, seal_ended, seal_threads
from .process_placement import first_ordinal
from .reader import JournalError, read_process


def compact(
    run: Path, *, wait_s: float = 0.0, exit_status: int | None = None, stopped: str = ""
) -> None:
    """Converts the journals of all processes that ended, and completes manifest and catalogue.

    Waits up to `wait_s` seconds for live processes; those that stay alive keep their journals.
    `stopped` names the signal that stopped the command. Raises OSError where the run cannot be
    written.
    """
    deadline = time.monotonic() + wait_s
    while not (closed := advance(run).done) and time.monotonic() < deadline:
        time.sleep(0.02)
    with manifests.locked(run):
        manifest = manifests.load_manifest(run)
        if exit_status is not None:
            manifest["exit_status"] = exit_status
        if stopped:
            manifest["notes"].append(f"{schema.STOPPED}: {stopped} came while the command ran")
        manifest["complete"] = manifests.is_complete(manifest)
        narrow(run, manifest)
        manifests.write_manifest(run, manifest)
        if closed:
            write_catalogue(run, manifest)
        journal = run / JOURNAL_FOLDER
        if journal.is_dir() and not any(journal.iterdir()):
            journal.rmdir()


class CompactionProgress(NamedTuple):
    """What a step of compaction left to do."""

    done: bool  # no journal is left
    behind: bool  # a live process has records for another step already


def advance(run: Path) -> CompactionProgress:
    """Compacts all journals that ended, and of the others one chunk of each thread."""
    done, behind = True, False
    with manifests.locked(run):
        folders = journal_folders(run)
        latest = {pid_of(folder): folder for folder in folders}
        for folder in folders:
            # A process that started a later journal, by exec, does not write to this one.
            superseded = latest[pid_of(folder)] != folder
            found = _advance_process(run, folder, ended=superseded or has_ended(folder))
            done &= found.done
            behind |= found.behind
    return CompactionProgress(done, behind)


def _advance_process(run: Path, folder: Path, *, ended: bool) -> CompactionProgress:
    """Finishes a journal that has ended: converts it, or sets it aside as unreadable.

    `ended` was read before the log, so a process that ends now is finished by the next call.
    """
    pending = PendingParts(run)
    try:
        log = read_process(folder)
    except JournalError as error:
        if not ended:  # the process is just creating it
            return CompactionProgress(done=False, behind=False)
        pending.note(str(error))
        folder.rename(folder.with_name(UNREADABLE + folder.name))
        return CompactionProgress(done=True, behind=False)
    log.process["gone"] = ended and not log.process["closed"]
    threads = pending.rank_table(log.rank, "thread")
    stacks = pending.rank_table(log.rank, "stack")
    decoder = Decoder(log, stacks, first_ordinal(log, threads))
    if not ended:
        # With --keep-last, later records overwrite earlier ones until the end.
        if log.process.get("keep_last_bytes"):
            return CompactionProgress(done=False, behind=False)
        behind = seal_threads(decoder, pending)
        seal_ended(decoder, pending)
        return CompactionProgress(done=False, behind=behind)
    if not decoder.is_empty() or pending.lists(log):
        for thread in log.threads:
            pending.add_ended(decoder, thread, chunks_of(thread, ended=True))
        pending.commit(decoder)
    shutil.rmtree(folder)
    return CompactionProgress(done=True, behind=False)


def main(arguments: list[str]) -> int:
    """Compacts the run `arguments[0]`; returns 0, or 2 with a message if it cannot be written."""
    os.nice(10)
    run = Path(arguments[0])
    try:
        compact(run)
    except OSError as error:
        reason = error.strerror or str(error)
        sys.stderr.write(f"lanescope: {run} cannot be finished ({reason}); it opens as it is\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
