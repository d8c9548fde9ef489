"""Reads the lines of the program around the places that stacks name, for the source table.

The files are read while the run is finished, on the machine that recorded it. A file that was
changed after the process began may not hold the text that ran: none of its lines are kept.
"""

from __future__ import annotations

import os
import stat
import time
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from ..format.program_files import NOT_THE_PROGRAM
from ..format.schema import TABLES

NEIGHBOURS = 3
"""Lines kept before and after each place."""
MAX_CHARACTERS = 200
"""Characters kept of a line."""
MAX_LINES = 20_000
"""Lines kept of a rank."""
MAX_FILE_BYTES = 4_000_000
"""Larger files are generated: they are not read."""


def source_lines(
    stacks: Iterable[Mapping[str, Any]], start_ns: int, held: int = 0
) -> pa.Table | None:
    """Returns rows of the source table for rows of the stack table; None without any.

    `start_ns`: start of the process, by the monotonic clock of this machine. `held`: lines that
    the rank has already.
    """
    places: dict[str, set[int]] = defaultdict(set)
    for row in stacks:
        for frame in row["frames"] or ():
            if frame["file"] and not NOT_THE_PROGRAM.search(frame["file"]):
                places[frame["file"]].add(frame["line"])
    began_s = time.time() - (time.monotonic_ns() - start_ns) / 1e9
    found: list[tuple[str, int, str]] = []
    for file, named in sorted(places.items()):
        lines = _lines_of(file, began_s)
        wanted = sorted(
            {near for at in named for near in range(at - NEIGHBOURS, at + NEIGHBOURS + 1)}
        )
        found += [
            (file, at, lines[at - 1].rstrip("\n")[:MAX_CHARACTERS])
            for at in wanted
            if 1 <= at <= len(lines)
        ]
    rows = found[: max(0, MAX_LINES - held)]
    if not rows:
        return None
    files, numbers, texts = map(list, zip(*rows, strict=True))
    return pa.table([files, numbers, texts], names=["file", "line", "text"]).cast(
        TABLES["source"].arrow()
    )


def _lines_of(file: str, began_s: float) -> list[str]:
    """Returns a file's lines as Python counts them; none if it is not what the process read."""
    try:
        known = os.stat(file)
        if (
            not stat.S_ISREG(known.st_mode)
            or known.st_mtime > began_s
            or known.st_size > MAX_FILE_BYTES
        ):
            return []
        with tokenize.open(file) as opened:
            return opened.readlines()
    except (OSError, SyntaxError, ValueError):  # gone, or not text in the encoding it declares
        return []
