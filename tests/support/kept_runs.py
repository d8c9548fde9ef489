"""Keeps recorded runs for as long as nothing that records them has changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from tests.support import ROOT
from tests.support.processes import Ended

KEPT = ROOT / "build" / "kept_runs"
_RECORD = ("collector", "tests/support")
"""A change of these records all programs again."""
_READ = ("tests/webapp/", "tests/browser/", "tests/faults/")
"""Tests that read runs. Those of the collector test how a run is recorded."""
_VARIABLES = ("LANESCOPE_", "TORCH_", "PYTORCH_", "MASTER_")


def recorded_once(
    folder: Path, program: Path, settings: object, record: Callable[[], Ended]
) -> Ended:
    """Fill `folder` with what `record` writes into it, or with a copy of what it wrote once.

    Nothing is kept in CI, nor of a program that knows a path of the test: what it leaves there
    is not in the folder.
    """
    place = _place_of(folder, program, settings)
    if place is None:
        return record()
    ended = place / "ended.json"
    if place.exists():
        shutil.copytree(place / "made", folder, dirs_exist_ok=True)
        return Ended(program, *json.loads(ended.read_text()))
    done = record()
    made = place.with_name(f"{place.name}-{os.getpid()}")
    shutil.copytree(folder, made / "made")
    (made / ended.name).write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
    try:
        made.rename(place)
    except OSError:  # another process kept the same meanwhile
        shutil.rmtree(made)
    return done


def _place_of(folder: Path, program: Path, settings: object) -> Path | None:
    reads = os.environ.get("PYTEST_CURRENT_TEST", "").startswith(_READ)
    if not reads or "CI" in os.environ or str(folder.parent) in f"{settings}{program.read_text()}":
        return None
    beside = program.parent.rglob if program.is_relative_to(ROOT) else program.parent.glob
    variables = sorted(one for one in os.environ.items() if one[0].startswith(_VARIABLES))
    return _folder() / _digest(sorted(beside("*.py")), f"{program.name} {settings} {variables}")


def _digest(files: Iterable[Path], more: str) -> str:
    digest = hashlib.sha256(more.encode())
    for path in files:
        digest.update(f"{path.name} ".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _folder() -> Path:
    """The folder of runs that these sources, this Python and this torch recorded; others go."""
    paths = (path for folder in _RECORD for path in sorted((ROOT / folder).rglob("*.*")))
    sources = [path for path in paths if path.suffix in {".py", ".cpp", ".h"}]
    kept = KEPT / _digest(sources, f"{sys.version} torch {version('torch')}")
    kept.mkdir(parents=True, exist_ok=True)
    for other in set(KEPT.iterdir()) - {kept}:
        shutil.rmtree(other, ignore_errors=True)
    return kept
