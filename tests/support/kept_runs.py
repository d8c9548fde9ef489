"""Keeps recorded runs for as long as nothing that records them has changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tests.support import ROOT

KEPT = ROOT / "build" / "kept_runs"
_RECORDS = ("collector", "tests/faults", "tests/support")
"""A change of these records all programs again."""


def recorded_once(name: str, run: Path, record: Callable[[Path], None]) -> Path:
    """Returns the run of this name: one that is kept, or what `record` makes of `run`.

    In CI all is recorded.
    """
    if "CI" in os.environ:
        record(run)
        return run
    kept = _folder() / name
    if not kept.exists():
        record(run)
        made = kept.with_name(f"{name}-{os.getpid()}")
        shutil.copytree(run, made)
        made.rename(kept)
    return kept


@cache
def _folder() -> Path:
    """The folder of runs that these sources, this Python and this torch recorded; others go."""
    digest = hashlib.sha256(f"{sys.version} torch {version('torch')}".encode())
    for path in sorted(path for folder in _RECORDS for path in (ROOT / folder).rglob("*.*")):
        if path.suffix in {".py", ".cpp", ".h"}:
            digest.update(f"{path.relative_to(ROOT)}".encode() + path.read_bytes())
    kept = KEPT / digest.hexdigest()[:16]
    kept.mkdir(parents=True, exist_ok=True)
    for other in set(KEPT.iterdir()) - {kept}:
        shutil.rmtree(other, ignore_errors=True)
    return kept
