"""A packed run for tests, and the command line as they call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.cli import main
from lanescope.webapp.runs.files import Folder
from lanescope.webapp.runs.notes import Notes
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import write_run

NOTES: dict[str, Any] = {
    "format": 1,
    "notes": [
        {"id": "a", "t0": 5, "t1": 9, "lane": "0/1000-0", "text": "early"},
        {"id": "b", "t0": 2_500_000, "t1": 2_600_000, "lane": None, "text": "in step 2"},
    ],
    "views": [{"name": "step 2", "search": "?t=2400000-2700000&sel=1.0.3&q=mm"}],
}


def lanescope(*arguments: object) -> Result:
    """What the command line answers."""
    return CliRunner().invoke(main, [str(one) for one in arguments])


def noted_run(folder: Path) -> Path:
    """A run of four ranks with notes and a saved view, in a folder."""
    path = write_run(folder / "run", ranks=4, threads=2, steps=4, ops=12)
    notes = Notes(Folder(path))
    notes.write(NOTES, notes.read()[1])
    return path


def packed(run: Path) -> Path:
    """The bundle of a run, beside it."""
    target = run.parent / "run.lanes"
    pack(open_run(run), target, cache=run.parent / "cache")
    return target
