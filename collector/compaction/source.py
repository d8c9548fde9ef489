"""Keeps the lines of the program that stacks and marks name, with their neighbours.

A line is read from the disk while the run is compacted, and only if its file has not changed since
the program started: Python loads a file once, so a later text may differ from the one that ran.
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..format.program_files import INSTALLED_FILE
from ..format.schema import SOURCE, Process
from ..journal.clock import clock_identity
from ..journal.journal import SOURCES_FILE
from .arrow_columns import to_table
from .reader import INVALID_JSON, ProcessLog

_NEIGHBOURS = 3
"""Lines on each side of a line that is named."""

_WHOLE_LINES = 1_000
"""Of a file of so few lines rank 0 keeps the others too: two versions of a program are compared."""

_MAX_CHARACTERS = 200
"""Characters of a line; the rest is replaced by an ellipsis."""

MAX_SOURCE_LINES = 14_000
"""Lines of a rank: 2,000 places with their neighbours."""

MAX_SOURCE_BYTES = 1_000_000
"""Bytes of the lines of a rank, encoded as UTF-8."""

_MAX_FILE_BYTES = 8 << 20
"""Larger files are generated, and read by no one."""

_IN_TEXT = re.compile(r"(/[^\s:()'\"]+\.py):([0-9]{1,9})\b")
"""A place in a mark or an exception."""

_Place = tuple[str, int]
_Lines = dict[_Place, str | None]


def source_rows(
    log: ProcessLog, stacks: pa.Table, known: pa.Table | None, others: Sequence[Process]
) -> pa.Table | None:
    """Returns the rank's source table with the places of a process; None if it stays as it is.

    `stacks` are the new rows of the stack table, `known` the rank's source table so far, `others`
    the manifest's entries of the rank's other processes.
    """
    process = log.process
    if process.get("source") is not True:
        return None
    files = _Files(log)
    before = _rows_of(known)
    lines = dict(before)
    if others:
        started_alone = [*(p["role"] for p in others), process["role"]].count("rank") <= 1
        _forget_different(lines, files, keep_changed=started_alone)
    named = dict.fromkeys([*_of_stacks(stacks), *_of_texts(log)])
    _add(lines, files, named)
    if process["rank"] == 0:  # ranks run one program
        _add(lines, files, _others(files, dict.fromkeys(file for file, _ in named)))
    return None if lines == before else _table(lines)


def _rows_of(known: pa.Table | None) -> _Lines:
    if known is None:
        return {}
    file, line, text = (known[name].to_pylist() for name in ("file", "line", "text"))
    return dict(zip(zip(file, line, strict=True), text, strict=True))


def _table(lines: _Lines) -> pa.Table:
    places = sorted(lines)
    return to_table(
        SOURCE,
        {
            "file": [file for file, _ in places],
            "line": np.array([line for _, line in places], np.int32),
            "text": [lines[place] for place in places],
        },
    )


def _forget_different(lines: _Lines, files: _Files, *, keep_changed: bool) -> None:
    """Sets lines to None where a process may have run others than those read for an earlier one.

    `keep_changed`: a file that changed after the start of this process, or is gone, was read for
    the same program.
    """
    for (file, line), text in lines.items():
        now = files.lines(file)
        if not (_text(now, line) == text if now else keep_changed):
            lines[file, line] = None


def _add(lines: _Lines, files: _Files, places: Iterable[_Place]) -> None:
    """Adds the lines of places, up to the limits."""
    size = sum(len(text.encode()) for text in lines.values() if text)
    for file, line in places:
        now = files.lines(file)
        if now is None or line < 1:
            continue
        if not now:
            new: _Lines = {(file, line): None}
        else:
            # The line behind the last one has no text: readers know that the file ends there.
            around = range(max(1, line - _NEIGHBOURS), min(line + _NEIGHBOURS, len(now) + 1) + 1)
            new = {(file, one): _text(now, one) for one in around}
        new = {place: text for place, text in new.items() if place not in lines}
        size += sum(len(text.encode()) for text in new.values() if text)
        if size > MAX_SOURCE_BYTES or len(lines) + len(new) > MAX_SOURCE_LINES:
            return
        lines.update(new)


def _others(files: _Files, named: Iterable[str]) -> Iterator[_Place]:
    """Yields places whose neighbours make up short files."""
    for file in named:
        lines = len(files.lines(file) or ())
        if lines <= _WHOLE_LINES:
            yield from ((file, line) for line in range(1, lines + 1, 2 * _NEIGHBOURS + 1))
            yield from [(file, lines)] if lines else []


def _text(lines: Sequence[str], line: int) -> str | None:
    """Returns a line as it is kept; None where the file has no such line."""
    if not 1 <= line <= len(lines):
        return None
    text = lines[line - 1].rstrip()
    # A surrogate of a cell's text cannot be encoded.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def _of_stacks(stacks: pa.Table) -> Iterator[_Place]:
    frames = stacks["frames"].combine_chunks().flatten()
    files, numbers = (frames.field(name).to_pylist() for name in ("file", "line"))
    return (place for place in zip(files, numbers, strict=True) if _is_program(place[0]))


def _of_texts(log: ProcessLog) -> Iterator[_Place]:
    """Yields the places in marks and in the exception that ended the process."""
    for text in (*log.texts, str(log.process.get("exception", ""))):
        if ".py:" in text:
            for found in _IN_TEXT.finditer(text):
                if _is_program(found[1]):
                    yield found[1], int(found[2])


def _is_program(file: str) -> bool:
    return not INSTALLED_FILE.search(file)


class _Files:
    """Files of a program as they were when it started."""

    def __init__(self, log: ProcessLog) -> None:
        process = log.process
        started, folder = process.get("program_start_ns"), process.get("working_folder")
        # A file of that name on another host may be another one.
        here = process.get("clock_identity") == clock_identity()
        self._started = started if here and isinstance(started, int) else 0
        self._folder = folder if isinstance(folder, str) else ""
        self._known: dict[str, list[str] | None] = {**_in_memory(log.folder)}

    def lines(self, file: str) -> list[str] | None:
        """Returns a file's lines; an empty list if it has changed; None if it cannot be read."""
        if file not in self._known:
            self._known[file] = self._read(file) if self._started else None
        return self._known[file]

    def _read(self, file: str) -> list[str] | None:
        path = os.path.join(self._folder, file)
        if not os.path.isabs(path) or "\0" in path:
            return None
        try:
            # A pipe of that name would never answer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as opened:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
                    return None
                data = opened.read(_MAX_FILE_BYTES)
                status = os.fstat(descriptor)
        except OSError:
            return None
        # A file put in place with its old time of change (cp -p) has a new one of its inode.
        if max(status.st_mtime_ns, status.st_ctime_ns) > self._started:
            return []
        return _decoded(data)


def _decoded(data: bytes) -> list[str] | None:
    """Returns the lines of Python source; None in an unknown encoding."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    except SyntaxError:
        return None
    # Not str.splitlines: Python counts no line at a form feed.
    return list(io.TextIOWrapper(io.BytesIO(data), encoding, errors="replace"))


def _in_memory(folder: Path) -> dict[str, list[str]]:
    """Returns name -> lines of code without a file, as the process left them at its end."""
    try:
        found = json.loads((folder / SOURCES_FILE).read_bytes())
    except (OSError, *INVALID_JSON):
        return {}
    whole = isinstance(found, dict) and all(
        isinstance(lines, list) and all(isinstance(line, str) for line in lines)
        for lines in found.values()
    )
    return found if whole else {}
