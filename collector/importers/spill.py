"""Holds a trace that was read, with its rows on disk so that memory does not grow with them."""

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

from ..format.record_kinds import ThreadKind
from .arguments import Arguments
from .events import Label
from .exported_run import ExportedRun
from .import_limits import MAX_ALL_NAME_CHARS, MAX_NAMES, MAX_TABLE_ROWS, ImportRejected

StructArray = NDArray[np.void]

GLOBAL = "all processes"
"""Process of global marks, which are put on the rank's main thread."""

UNFINISHED = -1
NONE = -1

FUNCTION_SLICE, BACKWARD_SLICE, USER_SLICE, KERNEL_SLICE, LAUNCHING_SLICE = 0, 1, 2, 4, 5
"""Kinds of slices: values of OpScope, and LAUNCHING, a call that puts work on a stream."""

PHASE_KIND = 16
"""Larger kinds are PHASE_KIND + a value of PhaseKind."""

ARGS_FIELDS = [("args_at", "<i8"), ("args_bytes", "<u4")]
"""Where `Trace.arguments` holds the arguments of a row; 0 bytes: none."""

SLICE_ROW = np.dtype(
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
        *ARGS_FIELDS,
    ]
)
"""Times in ns. `sequence`, `correlation` and `step` are NONE where the trace lacks them."""

VALUE_ROW = np.dtype(
    [("start", "<i8"), ("name", "<u4"), ("lane", "<u4"), ("value", "<f8"), *ARGS_FIELDS]
)
ARROW_ROW = np.dtype(
    [("start", "<i8"), ("lane", "<u4"), ("begins", "?"), ("object", "<i8"), *ARGS_FIELDS]
)

DEFAULT_PLATFORM = "cuda"
"""What devices are called where a trace does not say."""

_MAX_NAME_CHARS = 1 << 16
"""A kernel of CUTLASS has a name of 10,000."""

_MAX_ID_CHARS = 2000
_MAX_LANES = 20_000


def new_slices(count: int) -> StructArray:
    """Returns rows of slices with all fields unknown."""
    rows = np.zeros(count, SLICE_ROW)
    for name in ("sequence", "correlation", "step"):
        rows[name] = NONE
    return rows


class Spill:
    """Appends rows to a file, read back as one memory-mapped array."""

    def __init__(self, path: Path, dtype: np.dtype[np.void], of: Path) -> None:
        self.path, self._dtype, self._of = path, dtype, of
        self._file = path.open("wb")
        self.count = 0

    def add(self, rows: StructArray) -> None:
        """Appends rows of this file's type. Raises OSError, ImportRejected."""
        self.count += len(rows)
        if self.count > MAX_TABLE_ROWS:
            raise ImportRejected(
                f"{self._of}: holds more than {MAX_TABLE_ROWS:,} {self.path.name}, expected a "
                "trace of fewer; record fewer steps, or export them into several files"
            )
        self._file.write(rows.tobytes())

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process needs to read and add rows."""
        self._file.flush()
        return {**self.__dict__, "_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes over the file of another process."""
        self.__dict__.update(state)
        self._file = self.path.open("ab")

    def rows(self) -> StructArray:
        """Returns all rows added so far."""
        self._file.flush()
        if not self.count:
            return np.empty(0, self._dtype)
        return np.memmap(self.path, self._dtype, "r")


def release_pages(rows: StructArray) -> None:
    """Frees the memory of memory-mapped rows; the next access reads them again."""
    mapped = getattr(rows, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


ROWS_AT_ONCE = 1 << 20
"""That are in memory at once."""


def field_of(rows: StructArray, name: str, kind: Any = None) -> NDArray[Any]:
    """Returns one field of all rows as dtype `kind`, without keeping the rows in memory."""
    found = np.empty(len(rows), rows.dtype[name] if kind is None else kind)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        found[part] = rows[name][part]
        release_pages(rows)
    return found


def gather(rows: StructArray, name: str, which: NDArray[Any]) -> NDArray[Any]:
    """Returns one field of the rows `which`, without keeping the rows in memory."""
    found = np.empty(len(which), rows.dtype[name])
    for first in range(0, len(which), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        found[part] = rows[name][which[part]]
        release_pages(rows)
    return found


def rows_at(rows: StructArray, which: NDArray[Any]) -> StructArray:
    """Returns the rows `which` of all fields, eight times as fast as `rows[which]`."""
    return np.take(rows, which)


def rows_per_lane(lanes: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the rows of each lane. In batches: `bincount` takes 8 bytes per row."""
    parts = range(0, len(lanes), ROWS_AT_ONCE)
    count = 1 + max((int(lanes[first : first + ROWS_AT_ONCE].max()) for first in parts), default=0)
    found = np.zeros(count, np.int64)
    for first in parts:
        found += np.bincount(lanes[first : first + ROWS_AT_ONCE], minlength=count)
    return found


class ByLane:
    """Index of rows by lane, in the order of the file."""

    def __init__(self, rows: StructArray) -> None:
        # _MAX_LANES fits into 16 bits, which numpy sorts by radix.
        lanes = field_of(rows, "lane", np.uint16)
        counts = rows_per_lane(lanes)
        self._order = np.empty(len(rows), np.uint32)
        self._ends = np.cumsum(counts)
        filled = self._ends - counts
        for first in range(0, len(rows), ROWS_AT_ONCE):
            part = lanes[first : first + ROWS_AT_ONCE]
            order = np.argsort(part, kind="stable")
            found = np.bincount(part, minlength=len(counts))
            # Offset from a row's position within this part to its position in `_order`.
            moved = np.repeat(filled - (np.cumsum(found) - found), found)
            self._order[np.arange(len(part)) + moved] = order + first
            filled += found

    def positions(self, lanes: Sequence[int]) -> NDArray[np.uint32]:
        """Returns the positions of the rows of some lanes, ascending."""
        known = [lane for lane in lanes if lane < len(self._ends)]
        begins = [int(self._ends[lane - 1]) if lane else 0 for lane in known]
        parts = [
            self._order[begin : self._ends[lane]] for lane, begin in zip(known, begins, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return np.sort(np.concatenate([np.empty(0, np.uint32), *parts]))


class NameNumbers(dict[Any, int]):
    """Numbers for names, by the label of any type that a trace writes; 0 is the empty name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = [""]
        self.cut = 0  # names longer than the limit
        self._path = path
        self._size = 0
        self[""] = 0

    def __missing__(self, label: Any) -> int:
        text = "" if label is None else str(label)
        long = len(text) > _MAX_NAME_CHARS
        if long:
            self.cut += 1
            text = text[: _MAX_NAME_CHARS - 1] + "…"
        repaired = text.encode("utf-8", "replace").decode("utf-8")
        text = text if text == repaired else repaired
        number = self.get(text)
        if number is None:
            number = self[text] = len(self.texts)
            self.texts.append(text)
        self._size += len(text)
        if self._size > MAX_ALL_NAME_CHARS or len(self) > MAX_NAMES:
            raise ImportRejected(
                f"{self._path}: holds more than {MAX_ALL_NAME_CHARS >> 20} MB or {MAX_NAMES:,} of "
                "different names, expected a trace"
            )
        if not long:
            self[label] = number
        return number


@dataclass
class ImportedLane:
    """A thread of a process, or a stream of a device."""

    pid: Label
    tid: Label
    stream: bool = False
    name: str = ""  # as the trace names it
    device: str = "cpu"


WORKER_LABEL = re.compile(r"\[([A-Z]{2}\d{1,6}(?:-[A-Z]{2}\d{1,6})*)\] ?(.*)")
"""Process of a merged trace: coordinates of the worker, then its number."""


def unlabelled(pid: Label) -> Label:
    """Returns a process without the coordinates of its worker: `4711` for `[TP00-DP01] 4711`."""
    found = WORKER_LABEL.fullmatch(pid) if isinstance(pid, str) else None
    return found[2] if found else pid


def is_main_thread(lane: ImportedLane) -> bool:
    """Returns True if a thread has the number of its process; Kineto of 2021 writes it as text."""
    own = str(unlabelled(lane.pid))
    return own.isdecimal() and str(lane.tid) == own


class Lanes(dict[tuple[Any, Any, bool], int]):
    """Numbers for lanes: (process, thread, false) or (device, stream, true)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.lanes: list[ImportedLane] = []
        self._path = path

    def __missing__(self, key: tuple[Any, Any, bool]) -> int:
        if len(self.lanes) == _MAX_LANES:
            raise ImportRejected(
                f"{self._path}: has more than {_MAX_LANES} threads, expected a trace of a program"
            )
        if any(isinstance(one, str) and len(one) > _MAX_ID_CHARS for one in key):
            raise ImportRejected(
                f"{self._path}: has a thread or process whose id has more than {_MAX_ID_CHARS} "
                "letters, expected a trace of a program"
            )
        self[key] = len(self.lanes)
        self.lanes.append(ImportedLane(*key))
        return self[key]


class CollectiveSlice(NamedTuple):
    """A slice of a collective: the operator, the backend's work, or its description."""

    name: str
    lane: int
    start: int
    end: int
    signature: int
    raw_args: bytes


class CollectiveCall(NamedTuple):
    """One row of the collective table. Times in ns of the file's clock."""

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
    frames: str = ""


@dataclass
class Trace:
    """Contents of one file. Times in ns of the file's clock."""

    path: Path
    format: str  # name of the importer, or of the dialect
    texts: NameNumbers
    lanes: Lanes
    slices: Spill
    values: Spill
    arrows: Spill
    arguments: Arguments
    signatures: list[tuple[str, str]] = field(default_factory=lambda: [("", "")])
    collective_slices: list[CollectiveSlice] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    process_names: dict[Label, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter[str])
    platform: str = DEFAULT_PLATFORM
    thread_kind: ThreadKind = ThreadKind.native  # of threads other than the main one
    truncated: bool = False
    closed: bool = True  # False: the process was running when the file was written
    calls: list[CollectiveCall] | None = None  # collectives, where the file numbers them
    named_calls: list[CollectiveCall] = field(default_factory=list)  # found by names of slices
    order_only: bool = False  # the file holds no times: instants are places in its order
    lost_calls: bool = False  # the file may lack all calls of a group
    exported: ExportedRun | None = None  # tables that LaneScope wrote into the file

    @classmethod
    def create(cls, path: Path, folder: Path, format: str) -> Trace:
        """Returns an empty trace of the file `path`, with its rows in `folder`."""
        counts = Counter[str]()
        return cls(
            path,
            format,
            NameNumbers(path),
            Lanes(path),
            slices=Spill(folder / "slices", SLICE_ROW, path),
            values=Spill(folder / "values", VALUE_ROW, path),
            arrows=Spill(folder / "arrows", ARROW_ROW, path),
            arguments=Arguments(folder / "arguments", counts),
            counts=counts,
        )

    def text(self, number: int) -> str:
        """Returns the name with a number."""
        return self.texts.texts[number]
