"""Whether a run is whole: every file against its checksum, every row read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

from lanescope.collector.format import schema
from lanescope.webapp.runs.bundle import BUNDLE, Bundle
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.files import Files
from lanescope.webapp.runs.manifest import MAX_MANIFEST
from lanescope.webapp.runs.notes import Notes
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline import index as indexes
from lanescope.webapp.timeline.array_store import CATALOGUE_FILE

_PIECE = 1 << 20


def problems_of(path: str | os.PathLike[str]) -> tuple[Run, list[str]]:
    """Returns the run and one sentence for each thing that is damaged about it; none: it is whole.

    A run that lacks ranks is whole: it says which. RunError where nothing can be opened.
    """
    run = open_run(path)
    found = list(dict.fromkeys(_problems(run)))
    return run, found


def _problems(run: Run) -> Iterator[str]:
    files = run.files
    checksums = {name: (f["bytes"], f["sha256"]) for name, f in run.manifest["files"].items()}
    if isinstance(files, Bundle):
        for name, checksum in checksums.items():
            if files.listed.get(name) != checksum:
                yield (
                    f"{shown(name)}: {schema.MANIFEST} and {BUNDLE} do not agree about it; copy or "
                    "pack the run again"
                )
        checksums = dict(files.listed)
    else:
        # While a recording is at work, or after it died, the manifest holds the last known state.
        raw = json.loads(files.read(schema.MANIFEST, MAX_MANIFEST))
        checksums = checksums if raw["complete"] else {}
    for name, (size, digest) in sorted(checksums.items()):
        problem = _file(files, name, size, digest)
        if problem:
            yield problem
    yield from (text for text in run.warnings if "is left out" in text)
    for table in schema.TABLES:
        for rank in run.ranks:
            columns = [column.name for column in schema.TABLES[table].columns]
            for part in run.rows.parts.get((table, rank), ()):
                try:
                    part.read(columns)
                except RunError as error:
                    yield str(error)
    try:
        Notes(files).read()
    except RunError as error:
        yield str(error)
    lacking = (
        f"{indexes.PACKED}/{CATALOGUE_FILE}" not in files if isinstance(files, Bundle) else False
    )
    if lacking and indexes.bundle_has_index(run):
        yield f"{files.where}: has no index; pack it again, or it is built when it is viewed"


def _file(files: Files, name: str, size: int, digest: str) -> str:
    """What is wrong with a file's bytes; empty: nothing."""
    found = hashlib.sha256()
    try:
        with files.open(name) as file:
            while piece := file.read(_PIECE):
                found.update(piece)
            length = file.tell()
    except FileNotFoundError:
        return f"{shown(name)} is missing; restore it from a copy"
    except OSError as error:
        return f"{shown(name)} cannot be read ({error.strerror or error}); restore it from a copy"
    if length != size:
        return f"{shown(name)} has {length} bytes, expected {size}; restore it from a copy"
    if found.hexdigest() != digest:
        return (
            f"{shown(name)} was changed: its checksum is not the one it was packed or recorded "
            "with; restore it from a copy"
        )
    return ""
