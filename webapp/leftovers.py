"""Journals that no one turned into Parquet: what a process that died left behind."""

from __future__ import annotations

from pathlib import Path

from lanescope.collector import schema
from lanescope.webapp.parts import Part


def leftovers(root: Path, manifest: schema.Manifest) -> tuple[list[Part], list[str]]:
    """Rows recovered from `RUN/journal/<process>/`, and sentences about what could not be.

    Nothing is written: a run may lie on a read-only medium. The rows are `Part`s in memory, in
    the local time of their process like those of the files.
    """
    folder = root / schema.JOURNAL_FOLDER
    try:
        left = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError:
        return [], []
    return [], [f"the journal of process {name} was not turned into tables" for name in left]
