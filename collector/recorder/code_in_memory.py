"""Writes the source of code that is in no file, such as a notebook's cells, to the journal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ..journal import own_files
from ..journal.journal import SOURCES_FILE, STRINGS_FILE, write_json

_MAX_BYTES = 1_000_000
"""Limit of the texts that are written; later ones are left out."""


def write_sources(folder: Path) -> None:
    """Writes the lines of the code that the journal's stacks name. Raises OSError.

    Only the process itself has them, in `linecache`.
    """
    sources = dict(_in_memory())
    if not sources:
        return
    stacks = own_files.read(folder / STRINGS_FILE)
    left, found = _MAX_BYTES, {}
    for name, lines in sources.items():
        if f"{name}\t".encode("utf-8", "replace") in stacks:
            left -= sum(map(len, lines))
            if left >= 0:
                found[name] = lines
    if found:
        write_json(folder / SOURCES_FILE, found)


def _in_memory() -> Iterator[tuple[str, list[str]]]:
    """Yields the name and lines of each source that was put into `linecache` without a file."""
    linecache = sys.modules.get("linecache")
    # Another thread may add an entry meanwhile.
    for name, entry in [*linecache.cache.items()] if linecache else ():
        # A lazy entry consists of a function alone; one of a file has the time of its change.
        if len(entry) == 4 and entry[1] is None:
            yield name, entry[2]
