"""Journal -> Parquet: runs in a process of its own, beside or after the recorded ones.

    python -m lanescope.collector.compaction.compact RUN

Each step leaves a run that opens: parts are written under temporary names and renamed, then the
manifest names them, then the journal gives up what is in them. Doing a step again after a death in
between gives the same files.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from pathlib import Path

from ..format import schema
from ..format.file_names import JOURNAL_FOLDER
from . import manifest as manifests
from .clock_refine import narrow
from .decode import Decoder
from .merge import Pending
from .process_placement import first_ordinal
from .reader import JournalError, read_process, read_process_file
from .seal import seal_threads

_UNREADABLE = "unreadable-"


def compact(
    run: Path, *, wait_s: float = 0.0, exit_status: int | None = None, stopped: str = ""
) -> None:
    """Turn the journals of all processes that ended into Parquet, and finish the manifest.

    Processes still alive get up to `wait_s` seconds to end; what lives on keeps its journal.
    `stopped` names the signal by which someone stopped the command. Raises OSError where the run
    cannot be written.
    """
    deadline = time.monotonic() + wait_s
    while not advance(run) and time.monotonic() < deadline:
        time.sleep(0.02)
    with manifests.locked(run):
        manifest = manifests.read(run)
        if exit_status is not None:
            manifest["exit_status"] = exit_status
        if stopped:
            manifest["notes"].append(f"{schema.STOPPED}: {stopped} came while the command ran")
        manifest["complete"] = manifests.is_complete(manifest)
        narrow(run, manifest)
        manifests.write(run, manifest)
        journal = run / JOURNAL_FOLDER
        if journal.is_dir() and not any(journal.iterdir()):
            journal.rmdir()


def advance(run: Path) -> bool:
    """Compact what can be by now; whether nothing is left of any journal."""
    done = True
    with manifests.locked(run):
        folders = _folders(run)
        latest = {_pid(folder): folder for folder in folders}
        for folder in folders:
            # A process that began another journal has left this one, by exec.
            left = latest[_pid(folder)] != folder
            done &= _advance_process(run, folder, ended=left or _ended(folder))
    return done


def _folders(run: Path) -> list[Path]:
    journal = run / JOURNAL_FOLDER
    if not journal.is_dir():
        return []
    found = [f for f in journal.iterdir() if f.is_dir() and not f.name.startswith(_UNREADABLE)]
    # By start, which follows the process id in the name: parents before what they forked.
    return sorted(found, key=lambda f: int(f.name.partition("-")[2] or 0))


def _advance_process(run: Path, folder: Path, *, ended: bool) -> bool:
    """Whether the journal is dealt with: turned into Parquet, or found to be of no use.

    `ended` was seen before the log is read: a process that ends now is left for the next time.
    """
    pending = Pending(run)
    try:
        log = read_process(folder)
    except JournalError as error:
        if not ended:  # it is only just being made
            return False
        pending.note(str(error))
        folder.rename(folder.with_name(_UNREADABLE + folder.name))
        return True
    threads = pending.rank_table(log.rank, "thread")
    stacks = pending.rank_table(log.rank, "stack")
    decoder = Decoder(log, stacks, first_ordinal(log, threads))
    if not ended:
        # Where later records overwrite earlier ones, which stay is not known before the end.
        if not log.process.get("keep_last_bytes"):
            seal_threads(decoder, pending)
        return False
    if not decoder.is_empty():
        for thread, table, part, rows in decoder.thread_tables():
            pending.add_part(log.rank, thread, table, part, rows)
        pending.commit(decoder)
    shutil.rmtree(folder)
    return True


def _ended(folder: Path) -> bool:
    """Whether the process closed its journal or is gone. A folder without a process is one."""
    try:
        process = read_process_file(folder)
    except JournalError:
        return not _alive(_pid(folder))
    if process["closed"]:
        return True
    # On another host, a process of that id is another one.
    return process["host"] == socket.gethostname() and not _alive(int(process["pid"]))


def _pid(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:  # a zombie has written its last
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"


def main(arguments: list[str]) -> int:
    """`RUN`; 0, or 2 with a sentence where the run cannot be written."""
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
