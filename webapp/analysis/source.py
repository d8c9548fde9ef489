"""Lines of the program as they were recorded with the run.

They come from the run alone: the file of that name on this machine may be another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePath
from typing import Any, NamedTuple

from lanescope.webapp.runs.run import Run

NEIGHBOURS = 3
"""Lines shown before and after the one that is named."""


class SourceLine(NamedTuple):
    """A line of a file; `number` counts from 1."""

    number: int
    text: str

    def to_json(self) -> dict[str, Any]:
        """The line as `check --json` prints it."""
        return {"line": self.number, "text": self.text}


def line_text(run: Run, rank: int, file: str, line: int) -> str | None:
    """Returns one line; None if it was not recorded."""
    return _lines(run, rank).get(file, {}).get(line)


def lines_around(run: Run, place: str, ranks: Iterable[int] = ()) -> tuple[SourceLine, ...]:
    """Returns the lines around a place "file.py:12" of some ranks, or of all.

    None where several files of that name were recorded, which the place does not distinguish.
    """
    name, _, number = place.rpartition(":")
    if not number.isdecimal():
        return ()
    line = int(number)
    found: dict[str, dict[int, str]] = {}
    for rank in tuple(ranks) or run.ranks:
        for file, lines in _lines(run, rank).items():
            if line in lines and PurePath(file).name == name:
                found.setdefault(file, lines)
    if len(found) != 1:
        return ()
    ((_, lines),) = found.items()
    near = range(line - NEIGHBOURS, line + NEIGHBOURS + 1)
    return tuple(SourceLine(at, lines[at]) for at in near if at in lines)


@lru_cache(maxsize=64)
def _lines(run: Run, rank: int) -> dict[str, dict[int, str]]:
    if rank not in run.ranks:
        return {}
    found: dict[str, dict[int, str]] = {}
    for row in run.events("source", rank, columns=["file", "line", "text"]).to_pylist():
        found.setdefault(row["file"], {})[row["line"]] = row["text"]
    return found
