"""What a reader has understood of a trace: rows on disk, so that memory does not grow with them."""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import Refused
from .events import Label
from .limits import MOST_ROWS, MOST_TEXT, MOST_TEXTS

Rows = NDArray[np.void]

UNFINISHED = -1
NONE = -1

FUNCTION, BACKWARD, USER, KERNEL, LAUNCHING = 0, 1, 2, 4, 5
"""Kinds of slices: values of OpScope, and a call that puts work on a stream (a function)."""

PHASE = 16
"""From here on: PHASE + a value of PhaseKind."""

SLICE = np.dtype(
    [
        ("start", "<i8"),
        ("duration", "<i8"),
        ("name", "<u4"),
        ("lane", "<u4"),
        ("kind", "u1"),
        ("sequence", "<i8"),
        ("signature", "<u4"),
        ("correlation", "<i8"),
        ("step", "<i4"),
    ]
)
"""`sequence`, `correlation` and `step` are NONE where the trace does not tell them."""

VALUE = np.dtype([("start", "<i8"), ("name", "<u4"), ("lane", "<u4"), ("value", "<f8")])
ARROW = np.dtype([("start", "<i8"), ("lane", "<u4"), ("begins", "?"), ("object", "<i8")])

_RANK = re.compile(r"rank (\d{1,6})( \(child \d+\))?")

_LONGEST_TEXT = 2000
_MOST_LANES = 20_000


def new_slices(count: int) -> Rows:
    """Rows of slices of which nothing is known yet."""
    rows = np.zeros(count, SLICE)
    for name in ("sequence", "correlation", "step"):
        rows[name] = NONE
    return rows


class Spill:
    """Rows appended to a file, read back as one array that the system may page out."""

    def __init__(self, path: Path, dtype: np.dtype[np.void], of: Path) -> None:
        self._path, self._dtype, self._of = path, dtype, of
        self._file = path.open("wb")
        self.count = 0

    def add(self, rows: Rows) -> None:
        """Append rows of this file's type. Raises OSError, Refused."""
        self.count += len(rows)
        if self.count > MOST_ROWS:
            raise Refused(
                f"{self._of}: holds more than {MOST_ROWS:,} {self._path.name}, expected a trace of "
                "fewer; record fewer steps, or export them into several files"
            )
        self._file.write(rows.tobytes())

    def rows(self) -> Rows:
        """All rows so far."""
        self._file.flush()
        if not self.count:
            return np.empty(0, self._dtype)
        return np.memmap(self._path, self._dtype, "r")


def let_go(rows: Rows) -> None:
    """Gives the memory of rows that lie in a file back; they are read again when looked at."""
    mapped = getattr(rows, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


_AT_ONCE = 1 << 20


def column(rows: Rows, name: str, kind: Any = None) -> NDArray[Any]:
    """One field of all rows, read without holding the others, as values of `kind`."""
    found = np.empty(len(rows), rows.dtype[name] if kind is None else kind)
    for first in range(0, len(rows), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        found[part] = rows[name][part]
        let_go(rows)
    return found


def taken(rows: Rows, name: str, which: NDArray[Any]) -> NDArray[Any]:
    """One field of some rows, read without holding the others."""
    found = np.empty(len(which), rows.dtype[name])
    for first in range(0, len(which), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        found[part] = rows[name][which[part]]
        let_go(rows)
    return found


def counted(lanes: NDArray[Any]) -> NDArray[np.int64]:
    """How many rows each lane has; `bincount` takes 8 bytes for each that it looks at."""
    parts = range(0, len(lanes), _AT_ONCE)
    count = 1 + max((int(lanes[first : first + _AT_ONCE].max()) for first in parts), default=0)
    found = np.zeros(count, np.int64)
    for first in parts:
        found += np.bincount(lanes[first : first + _AT_ONCE], minlength=count)
    return found


class ByLane:
    """Rows of any lane, in the order of the file, without looking at all rows for each."""

    def __init__(self, rows: Rows) -> None:
        # See _MOST_LANES: so few are sorted by digits.
        lanes = column(rows, "lane", np.uint16)
        counts = counted(lanes)
        self._order = np.empty(len(rows), np.uint32)
        self._ends = np.cumsum(counts)
        filled = self._ends - counts
        for first in range(0, len(rows), _AT_ONCE):
            part = lanes[first : first + _AT_ONCE]
            order = np.argsort(part, kind="stable")
            found = np.bincount(part, minlength=len(counts))
            # Where a lane's rows stand among those of this part, and where they are put.
            moved = np.repeat(filled - (np.cumsum(found) - found), found)
            self._order[np.arange(len(part)) + moved] = order + first
            filled += found

    def places(self, lanes: Sequence[int]) -> NDArray[np.uint32]:
        """Where the rows of some lanes stand."""
        known = [lane for lane in lanes if lane < len(self._ends)]
        begins = [int(self._ends[lane - 1]) if lane else 0 for lane in known]
        parts = [
            self._order[begin : self._ends[lane]] for lane, begin in zip(known, begins, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate([np.empty(0, np.uint32), *parts]))


class Texts(dict[Any, int]):
    """Numbers for texts, by whatever label stands for them; 0 is the empty text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = [""]
        self.shortened = 0
        self._path = path
        self._size = 0
        self[""] = 0

    def __missing__(self, label: Any) -> int:
        text = "" if label is None else str(label)
        long = len(text) > _LONGEST_TEXT
        if long:
            text = text[: _LONGEST_TEXT - 1] + "…"
            self.shortened += 1
        repaired = text.encode("utf-8", "replace").decode("utf-8")
        text = text if text == repaired else repaired
        number = self.get(text)
        if number is None:
            number = self[text] = len(self.texts)
            self.texts.append(text)
        self._size += len(text)
        if self._size > MOST_TEXT or len(self) > MOST_TEXTS:
            raise Refused(
                f"{self._path}: holds more than {MOST_TEXT >> 20} MB or {MOST_TEXTS:,} of "
                "different names, expected a trace"
            )
        if not long:
            self[label] = number
        return number


@dataclass
class Lane:
    """Where slices lie: a thread of a process, or a stream of a device."""

    pid: Label
    tid: Label
    stream: bool = False
    name: str = ""  # as the trace names it
    device: str = "cpu"


class Lanes(dict[tuple[Any, Any, bool], int]):
    """Numbers for lanes: (process, thread, false) or (device, stream, true)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.lanes: list[Lane] = []
        self._path = path

    def __missing__(self, key: tuple[Any, Any, bool]) -> int:
        if len(self.lanes) == _MOST_LANES:
            raise Refused(
                f"{self._path}: has more than {_MOST_LANES} threads, expected a trace of a program"
            )
        if any(isinstance(one, str) and len(one) > _LONGEST_TEXT for one in key):
            raise Refused(
                f"{self._path}: has a thread or process whose id has more than {_LONGEST_TEXT} "
                "letters, expected a trace of a program"
            )
        self[key] = len(self.lanes)
        self.lanes.append(Lane(*key))
        return self[key]


class Talk(NamedTuple):
    """A slice that tells of a collective: the operator, the backend's work, or its description."""

    name: str
    lane: int
    start: int
    end: int
    signature: int
    raw_args: bytes


class Call(NamedTuple):
    """One collective, as the collective table holds it. Times are of the file's clock."""

    name: str
    lane: int
    start: int
    returned: int | None
    complete: int | None
    group: str
    group_size: int | None
    shapes: str
    dtypes: str
    bytes: int
    peer: int | None = None
    sequence: int = 0
    reduce_op: str = ""
    frames: str = ""


@dataclass
class Trace:
    """One file's contents. Times are ns of the file's own clock."""

    path: Path
    format: str  # kineto, viztracer, chrome
    texts: Texts
    lanes: Lanes
    slices: Spill
    values: Spill
    arrows: Spill
    launches: Spill  # arrows from the call that launched an activity to the activity
    signatures: list[tuple[str, str]] = field(default_factory=lambda: [("", "")])
    talks: list[Talk] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    process_names: dict[Label, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    platform: str = "cuda"
    truncated: bool = False
    closed: bool = True  # False: it tells of a process at work
    calls: list[Call] | None = None  # collectives that the file itself numbers
    lost_calls: bool = False  # groups may have had calls of which nothing is left

    def lanes_by_rank(self) -> dict[int, list[int]]:
        """Lanes of each rank, where a trace of several ranks names its processes after them."""
        found: dict[int, list[int]] = {}
        for number, lane in enumerate(self.lanes.lanes):
            named = _RANK.fullmatch(self.process_names.get(lane.pid, ""))
            if named is None:
                return {}
            found.setdefault(int(named[1]), []).append(number)
        return found

    def text(self, number: int) -> str:
        """The text of a number."""
        return self.texts.texts[number]
