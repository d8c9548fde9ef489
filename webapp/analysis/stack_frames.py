"""Stacks of a run: their frames, the program's own ones, and "file.py:12" of them.

A frame is a row {file, line, function}, or one line of text, "file:line function".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import pyarrow.compute as pc

from lanescope.collector.format.program_files import INSTALLED_FILE, RECORDER_FILE
from lanescope.webapp.runs.run import Run

_FRAME = re.compile(r"(.*?:\d+)(?: (.*))?", re.DOTALL)
"""A file's path may have blanks in it, and so may the name of a function."""

_MAX_BEFORE_NS = 1_000_000_000
"""How long before an instant an operator may have been that belongs to the same call."""

_PACKAGE_FILE = re.compile(r".*/(?:site|dist)-packages/(?!torch/)(.+?)(?:/__init__)?[.]py")
_NOT_THE_PROGRAM = re.compile(rf"^<|{INSTALLED_FILE.pattern}")


def frames_of(run: Run, rank: int, stack: int | None) -> list[dict[str, Any]]:
    """Returns the frames (file, line, function) of a stack of a rank, innermost first."""
    return [] if stack is None or stack < 0 else _stacks(run, rank).get(stack, [])


def frame_text(frame: Mapping[str, Any]) -> str:
    """Returns a frame as "file:line function"."""
    return f"{frame['file']}:{frame['line']} {frame['function']}"


def frame_texts(run: Run, rank: int) -> dict[int, list[str]]:
    """Returns stack id -> its frames as "file:line function", innermost first."""
    return {
        stack: [frame_text(frame) for frame in frames]
        for stack, frames in _stacks(run, rank).items()
    }


@lru_cache(maxsize=64)
def _stacks(run: Run, rank: int) -> dict[int, list[dict[str, Any]]]:
    rows = run.events("stack", rank, columns=["stack", "frames"]).to_pylist()
    return {row["stack"]: row["frames"] for row in rows}


def own_frames(run: Run, rank: int, stack: int | None) -> list[dict[str, Any]]:
    """Returns the program's own frames of a stack of a rank, innermost first."""
    frames = frames_of(run, rank, stack)
    return [frame for frame in frames if in_program(frame["file"])]


@lru_cache(maxsize=4096)
def in_program(file: str) -> bool:
    """Returns True if a file is the program's own: not installed, not Python's, not the
    recorder's."""
    return not _NOT_THE_PROGRAM.search(file)


@lru_cache(maxsize=64)
def library_modules(run: Run, rank: int) -> frozenset[str]:
    """Returns the names (a.b.c) of Python modules of installed packages, other than torch, that a
    rank's stacks name."""
    files = {frame["file"] for frames in _stacks(run, rank).values() for frame in frames}
    found = map(_PACKAGE_FILE.fullmatch, files)
    return frozenset(one[1].replace("/", ".") for one in found if one)


def place_of(frame: Mapping[str, Any]) -> str:
    """Returns file.py:12 of a frame."""
    return f"{short_place(frame['file'])}:{frame['line']}"


def short_place(place: str) -> str:
    """Returns file.py:12 of a place with its folders, and file.py of a file."""
    return place.rpartition("/")[2]


def program_places(run: Run, rank: int) -> set[tuple[str, int]]:
    """Returns (file, line) of all frames of a rank's stacks that are the program's own."""
    places = {(f["file"], f["line"]) for frames in _stacks(run, rank).values() for f in frames}
    return {place for place in places if in_program(place[0])}


def own_place(run: Run, rank: int, stack: int | None) -> str | None:
    """Returns file.py:12 of the program's innermost frame; None where no frame is the program's
    own."""
    return next(map(place_of, own_frames(run, rank, stack)), None)


def first_place(run: Run, rank: int, stacks: Iterable[int | None]) -> str | None:
    """Returns the `own_place` of the first of some stacks that has one."""
    return next(filter(None, (own_place(run, rank, one) for one in stacks)), None)


def where_of(run: Run, rank: int, stack: int | None) -> str | None:
    """Returns file.py:12 of the program's innermost frame; of a stack without one, of the
    innermost."""
    frames = frames_of(run, rank, stack)
    return own_place(run, rank, stack) or (place_of(frames[0]) if frames else None)


def phase_place(run: Run, rank: int, kind: str, window: tuple[int, int] | None) -> str | None:
    """Returns file.py:12 at which the program called an operator of a phase; None where none has a
    stack.

    `kind` is a word of PhaseKind, `window` [t0, t1) in ns from the start of the run, None: all.
    """
    phases = run.events("phase", rank, columns=["name", "kind"], window=window)
    names = phases.filter(pc.equal(phases["kind"].cast("string"), kind))["name"].unique()
    columns = ["start_ns", "phase", "stack"]
    whole = (run.events("op", rank, columns=columns, window=window),)
    for rows in run.pieces("op", rank, columns=columns) if window is None else whole:
        rows = rows.filter(pc.is_in(rows["phase"].cast("string"), names.cast("string")))
        stacks = pc.unique(rows["stack"]).drop_null().to_pylist()
        where = first_place(run, rank, stacks)
        if where is not None:
            return where
    return None


def place_before(run: Run, rank: int, thread: str, time_ns: int) -> str | None:
    """Returns file.py:12 at which the program called the last operator of a thread before an
    instant; None where that is long ago."""
    window = max(0, time_ns - _MAX_BEFORE_NS), time_ns
    stacks = run.events("op", rank, thread, columns=["stack"], window=window)["stack"].drop_null()
    return own_place(run, rank, stacks[-1].as_py()) if len(stacks) else None


def layer_place(run: Run, rank: int, layer: str) -> str | None:
    """Returns file.py:12 at which the program called a layer's first operator; None where none has
    a stack.

    `layer` is the path of a module: "blocks.0.mlp".
    """
    for rows in run.pieces("op", rank, columns=["module", "stack"]):
        path = rows["module"].cast("string")
        within = pc.or_(pc.equal(path, layer), pc.starts_with(path, f"{layer}."))
        stacks = pc.unique(rows["stack"].filter(within)).drop_null().to_pylist()
        where = first_place(run, rank, stacks)
        if where is not None:
            return where
    return None


def called_from_program(frames: Sequence[Mapping[str, Any]]) -> str:
    """Returns `queue.get`: the function of a library that the program called and that has not
    returned."""
    inner = ""
    for frame in frames:
        if in_program(frame["file"]):
            return inner
        if not RECORDER_FILE.search(frame["file"]):
            inner = f"{PurePath(frame['file']).stem}.{frame['function']}"
    return ""


def line_and_function(frame: str) -> tuple[str, str]:
    """Returns the line with the file's path, and the function, of a frame's text."""
    found = _FRAME.fullmatch(frame)
    return (found[1], found[2] or "") if found else (frame, "")


def innermost_line(stack: Sequence[str]) -> str:
    """Returns the innermost line, with the file's path; empty without a stack."""
    return line_and_function(stack[0])[0] if stack else ""


def innermost_place(stack: Sequence[str]) -> str | None:
    """Returns the same as findings write it, "file.py:12"; None without a stack."""
    return short_place(innermost_line(stack)) or None
