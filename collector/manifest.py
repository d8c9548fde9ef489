"""Writes manifest.json: made before recording, completed as processes are compacted."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .journal import write_json
from .kinds import FORMAT_VERSION, LOCK_FILE, MANIFEST
from .options import Options

UNCALIBRATED_NS = 1_000_000_000
"""Uncertainty stated for hosts aligned by their wall clocks alone: nothing better is known."""


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """One writer of the run's shared files at a time, across processes."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def create(run: Path, options: Options, command: Sequence[str], world_size: int) -> None:
    """Write the manifest of a run that begins; one that is there already stays.

    Needs neither pyarrow nor torch. Raises OSError.
    """
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
                "processes": [],
                "files": {},
            },
        )


def read(run: Path) -> dict[str, Any]:
    """The manifest as it stands. Raises OSError or ValueError."""
    manifest: dict[str, Any] = json.loads((run / MANIFEST).read_text())
    return manifest


def process_entry(process: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """A process as the manifest lists it; `reference` is the process whose clock is the axis."""
    shared = process["clock_identity"] == reference["clock_identity"]
    offset = process["wall_minus_monotonic_ns"] - reference["wall_minus_monotonic_ns"]
    return {
        "rank": process["rank"],
        "pid": process["pid"],
        "parent_pid": process["parent_pid"],
        "role": process["role"],
        "host": process["host"],
        "engine": process["engine"],
        "start_ns": process["start_ns"],
        "end_ns": process["end_ns"],
        "closed": process["closed"],
        "argv": process["argv"],
        "python": process["python"],
        "torch": process["torch"],
        "modules_root": process["modules_root"],
        "clock": {
            "offset_ns": 0 if shared else offset,
            "drift_ppb": 0.0,
            "uncertainty_ns": 0 if shared else UNCALIBRATED_NS,
            "calibrated": shared,
            "host": process["clock_identity"],
        },
        "coverage": process.get("coverage", {}),
    }


def is_complete(manifest: dict[str, Any]) -> bool:
    """Whether every expected rank is there and its own processes were closed."""
    ranks = [p for p in manifest["processes"] if p["role"] == "rank"]
    present = {p["rank"] for p in ranks}
    return present >= set(range(manifest["world_size"])) and all(p["closed"] for p in ranks)
