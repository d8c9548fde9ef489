"""Reads and writes manifest.json: created before recording, completed by compaction."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..format.file_names import LOCK_FILE, MANIFEST
from ..format.options import Options
from ..format.record_kinds import FORMAT_VERSION
from ..journal.journal import write_json


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Locks the run's shared files across processes. Raises OSError where the run is gone."""
    with (run / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(run: Path) -> bool:
    """Returns True if a process holds the lock of the run's shared files. Writes nothing."""
    try:
        with (run / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def create(run: Path, options: Options, command: Sequence[str], world_size: int) -> None:
    """Writes the manifest of a new run; an existing one stays.

    Needs neither pyarrow nor torch. Raises OSError, also where the path is not UTF-8, which
    Parquet cannot read or write.
    """
    try:
        os.fspath(run.absolute()).encode()
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "its name is not UTF-8") from None
    run.mkdir(parents=True, exist_ok=True)
    with locked(run):
        if (run / MANIFEST).exists():
            return
        created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        write_json(
            run / MANIFEST,
            {
                "format": FORMAT_VERSION,
                "id": uuid.uuid4().hex,
                "created": created,
                "command": list(command),
                "level": options.level,
                "options": asdict(options),
                "world_size": world_size,
                "complete": False,
                "exit_status": None,
                "notes": [],
                "axis": None,
                "processes": [],
                "groups": {},
                "files": {},
            },
        )


def load_manifest(run: Path) -> dict[str, Any]:
    """Returns the manifest. Raises OSError or ValueError."""
    manifest: dict[str, Any] = json.loads((run / MANIFEST).read_bytes())
    return manifest


def write_manifest(run: Path, manifest: dict[str, Any]) -> None:
    """Replaces the manifest atomically. Raises OSError."""
    write_json(run / MANIFEST, manifest)


def is_complete(manifest: dict[str, Any]) -> bool:
    """Returns True if every expected rank is present and its own processes were closed."""
    ranks = [p for p in manifest["processes"] if p["role"] == "rank"]
    present = {p["rank"] for p in ranks}
    return present >= set(range(manifest["world_size"])) and all(p["closed"] for p in ranks)
