"""Journal -> Parquet: runs in a process of its own, beside or after the recorded ones.

    python -m lanescope.collector.compact RUN

Each step leaves a run that opens: parts are written under temporary names and renamed, then the
manifest names them, then the journal goes. Doing it again after a death in between gives the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from . import manifest as manifests
from .decode import Decoder, axis_reference, process_entry
from .journal import write_json
from .journal_reader import JournalError, read_process
from .kinds import JOURNAL_FOLDER, MANIFEST, part_file, rank_folder, thread_folder
from .schema import TABLES

COMPRESSION = "zstd"
ROW_GROUP = 128 * 1024

_DELTA = "DELTA_BINARY_PACKED"
_KEYS = {"thread": ["thread"], "module": ["path", "class"], "stack": ["stack"]}


def compact(run: Path, *, wait_s: float = 0.0, exit_status: int | None = None) -> None:
    """Turn the journals of all processes that ended into Parquet.

    Processes still alive get up to `wait_s` seconds to end; what lives on keeps its journal.
    Raises OSError where the run cannot be written.
    """
    deadline = time.monotonic() + wait_s
    with manifests.locked(run):
        while True:
            waiting = [f for f in _folders(run) if not _compact_process(run, f)]
            if not waiting or time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        manifest = manifests.read(run)
        if exit_status is not None:
            manifest["exit_status"] = exit_status
        manifest["complete"] = manifests.is_complete(manifest)
        write_json(run / MANIFEST, manifest)
        journal = run / JOURNAL_FOLDER
        if journal.is_dir() and not any(journal.iterdir()):
            journal.rmdir()


def _folders(run: Path) -> list[Path]:
    journal = run / JOURNAL_FOLDER
    if not journal.is_dir():
        return []
    # By start, which follows the process id in the name: parents before what they forked.
    found = [f for f in journal.iterdir() if f.is_dir()]
    return sorted(found, key=lambda f: int(f.name.partition("-")[2] or 0))


def _compact_process(run: Path, folder: Path) -> bool:
    """Whether the journal is dealt with: turned into Parquet, or found to be of no use."""
    try:
        log = read_process(folder)
    except JournalError as error:
        _note(run, str(error))
        folder.rename(folder.with_name(f"unreadable-{folder.name}"))
        return True
    if folder.name.startswith("unreadable-"):
        return True
    process = log.process
    if not process["closed"] and _alive(int(process["pid"])):
        return False
    rank = run / rank_folder(int(process["rank"]))
    decoder = Decoder(log, _known_stacks(rank))
    if not decoder.is_empty():
        _write_process(run, rank, decoder)
    shutil.rmtree(folder)
    return True


def _write_process(run: Path, rank: Path, decoder: Decoder) -> None:
    files: dict[str, dict[str, Any]] = {}
    parts: dict[tuple[str, str], int] = {}
    latest = 0
    for thread, table, rows in decoder.thread_tables():
        part = parts[thread, table] = parts.get((thread, table), -1) + 1
        path = rank / thread_folder(thread) / part_file(table, part)
        _write(run, path, rows, table, files)
    ranked = decoder.rank_tables()
    ends = ranked["thread"]["end_ns"].to_pylist()
    latest = max(ends, default=0)
    for table, rows in ranked.items():
        _write(run, rank / f"{table}.parquet", _merged(rank, table, rows), table, files)
    manifest = manifests.read(run)
    process = decoder.log.process
    process["end_ns"] = process["end_ns"] or latest
    coverage = process.setdefault("coverage", {})
    # A process that died could not say what it dropped, but its segments' headers did.
    coverage["dropped"] = max(coverage.get("dropped", 0), decoder.dropped)
    known = manifest["processes"]
    reference = manifest["axis"] = manifest["axis"] or axis_reference(process)
    entry = process_entry(process, reference)
    others = [p for p in known if (p["rank"], p["pid"]) != (entry["rank"], entry["pid"])]
    manifest["processes"] = sorted([*others, entry], key=lambda p: (p["rank"], p["start_ns"]))
    manifest["world_size"] = max(manifest["world_size"], int(process["world_size"]))
    manifest["notes"].extend(decoder.log.damage)
    manifest["files"].update(files)
    write_json(run / MANIFEST, manifest)


def _write(
    run: Path, path: Path, rows: pa.Table, table: str, files: dict[str, dict[str, Any]]
) -> None:
    """One Parquet file, renamed into place, and what the manifest says of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    columns = TABLES[table].columns
    plain = [c.name for c in columns if pa.types.is_integer(c.type)]
    try:
        pq.write_table(
            rows,
            temporary,
            compression=COMPRESSION,
            row_group_size=ROW_GROUP,
            use_dictionary=[c.name for c in columns if not pa.types.is_integer(c.type)],
            column_encoding=dict.fromkeys(plain, _DELTA),
            write_statistics=True,
        )
        data = temporary.read_bytes()
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    files[path.relative_to(run).as_posix()] = {
        "bytes": len(data),
        "rows": rows.num_rows,
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _merged(rank: Path, table: str, rows: pa.Table) -> pa.Table:
    """The rank's rows of earlier processes and these; the newer one where the key is the same."""
    path = rank / f"{table}.parquet"
    if not path.exists():
        return rows
    keys = _KEYS[table]
    old = pq.read_table(path, schema=TABLES[table].arrow(), partitioning=None)
    new_keys = {tuple(row.values()) for row in rows.select(keys).to_pylist()}
    kept = [tuple(row.values()) not in new_keys for row in old.select(keys).to_pylist()]
    return pa.concat_tables([old.filter(pa.array(kept, pa.bool_())), rows]).combine_chunks()


def _known_stacks(rank: Path) -> pa.Table | None:
    path = rank / "stack.parquet"
    return pq.read_table(path, partitioning=None) if path.exists() else None


def _note(run: Path, sentence: str) -> None:
    manifest = manifests.read(run)
    if sentence not in manifest["notes"]:
        manifest["notes"].append(sentence)
        write_json(run / MANIFEST, manifest)


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
    """`RUN [SECONDS TO WAIT]`; 0, or 2 with a sentence where the run cannot be written."""
    os.nice(10)
    run = Path(arguments[0])
    try:
        compact(run, wait_s=float(arguments[1]) if len(arguments) > 1 else 0.0)
    except OSError as error:
        sys.stderr.write(f"lanescope: {run} cannot be finished: {error.strerror or error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
