"""Lines of the program that a run kept: those that stacks and findings name, with neighbours.

They were recorded with the run. The disk of the reader is never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict

from lanescope.collector.format.record_kinds import PhaseKind
from lanescope.webapp.analysis.stack_frames import (
    layer_place,
    line_and_function,
    phase_place,
    program_places,
    short_place,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_NEIGHBOURS = 3
"""Lines on each side of the named one."""

_MAX_PLACES = 4
"""Places of a finding whose lines are shown."""

_MAX_CHARACTERS = 200
"""Characters of a line, as it is recorded; a run of another origin may hold longer ones."""

_PARAMETERS = ("parameter", "parameters")
_LAYERS = ("layer", "layers", "modules", *_PARAMETERS)
"""Of evidence: what names a layer, or a parameter of one."""

_OF_BASELINE = "base"
"""Evidence about another run, in which a line of the same number may be another one."""


class Line(TypedDict):
    """One line of a file."""

    line: int  # from 1
    text: str


class Excerpt(TypedDict):
    """A place with its line, and the lines around it."""

    where: str  # file.py:12
    line: int
    lines: list[Line]  # by number, the named one among them


def excerpt(run: Run, rank: int, file: str, line: int) -> Excerpt | None:
    """Returns the lines about a place of a rank; None where the run does not hold its text."""
    kept = _kept(run, rank).get(file, {})
    if line not in kept:
        return None
    near = range(line - _NEIGHBOURS, line + _NEIGHBOURS + 1)
    return {
        "where": f"{short_place(file)}:{line}",
        "line": line,
        "lines": [
            {"line": one, "text": kept[one][:_MAX_CHARACTERS]} for one in near if one in kept
        ],
    }


def named_line(found: Excerpt) -> str:
    """Returns the place and its line in one line of text: `file.py:12: loss.backward()`."""
    return f"{found['where']}: {text_of(found).strip()}"


def text_of(found: Excerpt) -> str:
    """Returns the text of the named line."""
    return next(one["text"] for one in found["lines"] if one["line"] == found["line"])


def writes_number(run: Run, rank: int, frame: Mapping[str, Any], numbers: Sequence[float]) -> bool:
    """Returns whether the line of a frame holds one of some numbers, or its text is not known."""
    found = excerpt(run, rank, frame["file"], frame["line"])
    written = "|".join(re.escape(f"{one:g}") for one in numbers)
    return found is None or bool(re.search(rf"(?<![\w.])({written})(?!\w)", text_of(found)))


def source_coverage(run: Run) -> str:
    """Returns a sentence about the places of stacks whose lines the run holds, and about others."""
    held = changed = missing = 0
    for rank in run.ranks:
        rows = run.events("source", rank, columns=["file", "line", "text"]).to_pylist()
        known = {(row["file"], row["line"]): row["text"] for row in rows}
        for place in program_places(run, rank):
            if place not in known:
                missing += 1
            elif known[place] is None:
                changed += 1
            else:
                held += 1
    words = [f"Lines of the program are recorded for {units.counted(held, 'place')} of stacks"]
    words += [f"not for {changed:,} whose file changed after the start"] if changed else []
    words += [f"not for {missing:,} that were not readable, or too many"] if missing else []
    return f"{', '.join(words)}."


def stack_excerpts(
    run: Run, rank: int, frames: Sequence[Mapping[str, Any]]
) -> list[Excerpt | None]:
    """Returns the lines about each frame (file, line) of a stack; [] where none is known."""
    found = [excerpt(run, rank, frame["file"], frame["line"]) for frame in frames]
    return found if any(found) else []


def excerpts_of(
    run: Run, ranks: Sequence[int], where: str | None, evidence: Mapping[str, Any]
) -> tuple[Excerpt, ...]:
    """Returns the lines of the places that a finding names: `where`, then those of its evidence.

    A place is named as file.py:12. Where several files of that name have different lines there,
    and no stack of the evidence decides, it is left out.
    """
    named = dict.fromkeys([*([where] if where else []), *_places(evidence)])
    frames = {line_and_function(frame)[0] for frame in _stacks(evidence)}
    found = (_excerpt_at(run, ranks, place, frames) for place in named)
    return tuple([one for one in found if one is not None][:_MAX_PLACES])


def layer_line(run: Run, ranks: Sequence[int], evidence: Mapping[str, Any]) -> str | None:
    """Returns file.py:12 at which the program calls the first layer that a finding's evidence
    names; None without."""
    for key, names in evidence.items():
        first = names[0] if isinstance(names, (list, tuple)) and names else names
        named = first.get("layer") if isinstance(first, Mapping) else first
        if key in _LAYERS and isinstance(named, str) and ranks:
            layer = named.rpartition(".")[0] if key in _PARAMETERS else named
            if layer:
                return layer_place(run, ranks[0], layer)
            return phase_place(run, ranks[0], PhaseKind.forward.name, None)  # the model itself
    return None


def _excerpt_at(run: Run, ranks: Sequence[int], place: str, frames: set[str]) -> Excerpt | None:
    name, _, number = place.rpartition(":")
    if not number.isdecimal():
        return None
    line, found = int(number), []
    for rank in ranks or run.ranks:
        files = _files(run, rank).get(name, ())
        called = program_places(run, rank)
        decided = [file for file in files if f"{file}:{line}" in frames]
        decided = decided or [file for file in files if (file, line) in called]
        for file in decided or files:
            one = excerpt(run, rank, file, line)
            if one is not None and one not in found:
                found.append(one)
    return found[0] if len(found) == 1 else None


def _places(evidence: Any) -> Iterator[str]:
    """Yields all values of `where`, at any depth."""
    if isinstance(evidence, Mapping):
        if isinstance(evidence.get("where"), str):
            yield evidence["where"]
        for key, value in evidence.items():
            if key != _OF_BASELINE:
                yield from _places(value)
    elif isinstance(evidence, list | tuple):
        for value in evidence:
            yield from _places(value)


def _stacks(evidence: Any) -> Iterator[str]:
    """Yields all frames of stacks, "file:line function", at any depth."""
    if isinstance(evidence, Mapping):
        for key, value in evidence.items():
            if key == "stack" and isinstance(value, list | tuple):
                yield from (frame for frame in value if isinstance(frame, str))
            elif key != _OF_BASELINE:
                yield from _stacks(value)
    elif isinstance(evidence, list | tuple):
        for value in evidence:
            yield from _stacks(value)


def whole_files(run: Run, rank: int) -> dict[str, list[str]]:
    """Returns file -> lines of those that the run holds from their first to their last one; the
    place behind that has no text."""
    rows = run.events("source", rank, columns=["file", "line"])
    ends = dict(zip(rows["file"].to_pylist(), rows["line"].to_pylist(), strict=True))
    return {
        file: [lines[line] for line in sorted(lines)]
        for file, lines in _kept(run, rank).items()
        if max(lines) == len(lines) == ends[file] - 1
    }


@lru_cache(maxsize=64)
def _kept(run: Run, rank: int) -> dict[str, dict[int, str]]:
    """Returns file -> line -> text."""
    if rank not in run.ranks:
        return {}
    rows = run.events("source", rank, columns=["file", "line", "text"])
    kept: dict[str, dict[int, str]] = {}
    for file, line, text in zip(*(rows[c].to_pylist() for c in rows.column_names), strict=True):
        if None not in (file, line, text):
            kept.setdefault(file, {})[line] = text
    return kept


@lru_cache(maxsize=64)
def _files(run: Run, rank: int) -> dict[str, list[str]]:
    """Maps the name of a file to its paths."""
    files: dict[str, list[str]] = {}
    for file in _kept(run, rank):
        files.setdefault(short_place(file), []).append(file)
    return files
