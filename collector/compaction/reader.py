"""Reads journals, also of processes that died in the middle of a record."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..format.record_kinds import ThreadKind
from ..journal.journal import (
    ALIVE_FILE,
    CALIBRATION_FILE,
    ENDED_FILE,
    FIELDS,
    HEADER,
    HEADER_BYTES,
    LAST_SEGMENT_BYTES,
    MAGIC,
    OPEN_CAPACITY,
    OPEN_DEPTH_OFFSET,
    OPEN_OFFSET,
    OVERWRITTEN_OFFSET,
    PARTS_OFFSET,
    PROCESS_FILE,
    RECORD_BYTES,
    SEGMENT_SUFFIX,
    STALL_STACKS_FILE,
    STRINGS_FILE,
    RecordKind,
)
from ..journal.string_table import MAX_TEXT_BYTES
from .clock_fit import Calibration

RECORD_DTYPE = np.dtype([(name, kind) for name, kind in FIELDS])
Records = NDArray[np.void]

_MAX_JSON_BYTES = 1 << 20
_MAX_SIGNAL_BYTES = 64
_MAX_READ_TEXT_BYTES = 2 * MAX_TEXT_BYTES
"""The recorder writes at most half as much."""

INVALID_JSON = (ValueError, RecursionError)
"""Exceptions of reading JSON that is damaged, or nested deeper than Python's stack."""

_NUMBERS = {"rank", "world_size", "pid", "start_ns", "end_ns", "wall_minus_monotonic_ns"}
_MAX_ABS = 1 << 63
"""Integers of process.json; each may be missing."""

_MAX_THREAD_KIND = max(ThreadKind)
_LAST_KIND = max(RecordKind)
_SIGNAL = "signal "
_IN = " in "
_TERMINATED = _SIGNAL + "SIGTERM"


class JournalError(Exception):
    """A journal cannot be read; the message is one sentence."""


@dataclass(frozen=True)
class ThreadLog:
    """Segments of one thread, oldest first."""

    ordinal: int
    native_id: int
    kind: int
    pid: int
    segments: tuple[Path, ...]
    parts: int  # part files with earlier records
    ring: bool = False  # the process may overwrite segments at any moment

    def records(self) -> Iterator[Records]:
        """Yields the complete records of each segment, as stored."""
        for path in self.segments:
            yield self.read(path)

    def read(self, path: Path) -> Records:
        """Returns the complete records of a segment; none if it was overwritten meanwhile."""
        try:
            return read_records(path)
        except FileNotFoundError:
            if self.ring:
                return np.empty(0, RECORD_DTYPE)
            raise

    def has_ended(self) -> bool:
        """Returns True if the thread closed its journal: it is cut behind the last record, no event
        is open and none was dropped."""
        header = self.last_header()
        fields = HEADER.unpack_from(header)
        full = HEADER_BYTES + fields[3] * RECORD_BYTES
        return bool(self.segments[-1].stat().st_size < full) and not (fields[10] or fields[11])

    def open_events(self) -> Records:
        """Returns the events that were open when the log ends, outermost first."""
        header = self.last_header()
        (depth,) = struct.unpack_from("<I", header, OPEN_DEPTH_OFFSET)
        count = min(int(depth), OPEN_CAPACITY)
        found = np.frombuffer(header, RECORD_DTYPE, count, OPEN_OFFSET)
        return found[_complete(found)]

    def last_header(self) -> bytes:
        """Returns the header of the segment that was written to last."""
        try:
            with self.segments[-1].open("rb") as file:
                return file.read(HEADER_BYTES)
        except FileNotFoundError:
            if self.ring:
                return bytes(HEADER_BYTES)
            raise


@dataclass(frozen=True)
class ProcessLog:
    """Journal of one process: description, texts, and threads by ordinal."""

    folder: Path
    process: dict[str, Any]
    texts: tuple[str, ...]  # by id; 0 is the empty text
    threads: tuple[ThreadLog, ...]
    damage: tuple[str, ...]  # sentences about segments that were left out

    @property
    def rank(self) -> int:
        """The rank that the process knew last."""
        return int(self.process["rank"])


def read_process(folder: Path) -> ProcessLog:
    """Reads the journal of one process. Raises JournalError for another folder.

    The `coverage` of `process` includes dropped and overwritten records from segment headers,
    which a process that died could not describe.
    """
    process = read_process_file(folder)
    ring = bool(process.get("keep_last_bytes"))
    threads: dict[int, list[tuple[int, Path, tuple[Any, ...]]]] = {}
    damage: list[str] = []
    overwritten = 0
    for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}")):
        try:
            header = _read_header(path)
        except JournalError as error:
            damage.append(str(error))
            continue
        except FileNotFoundError:
            if ring:  # overwritten meanwhile
                continue
            raise
        overwritten = max(overwritten, header[12])
        threads.setdefault(header[4], []).append((header[5], path, header))
    logs = []
    dropped = 0
    for ordinal, segments in sorted(threads.items()):
        segments = sorted(segments) if ring else _current(segments)
        last = segments[-1][2]
        damage += [
            f"{path}: was cut off at {header[13]:,} bytes; records behind them are missing"
            for number, path, header in segments
            if _cut(header, full=number < segments[-1][0] and not _parts(path))
        ]
        logs.append(
            ThreadLog(
                ordinal=ordinal,
                native_id=last[8],
                kind=last[6],
                pid=last[7],
                segments=tuple(path for _, path, _ in segments),
                parts=0 if ring else _parts(segments[0][1]),
                ring=ring,
            )
        )
        dropped += last[10]
    coverage = process.setdefault("coverage", {})
    for reason, count in (("dropped", dropped), ("overwritten", overwritten)):
        if count > coverage.get(reason, 0):
            coverage[reason] = count
    return ProcessLog(folder, process, read_texts(folder), tuple(logs), tuple(damage))


def read_process_file(folder: Path) -> dict[str, Any]:
    """Reads process.json. Raises JournalError where it is missing or invalid."""
    try:
        with (folder / PROCESS_FILE).open("rb") as file:
            process = json.loads(file.read(_MAX_JSON_BYTES))
    except (OSError, *INVALID_JSON) as error:
        raise JournalError(f"{folder}: {PROCESS_FILE} cannot be read ({error})") from error
    if not isinstance(process, dict):
        raise JournalError(f"{folder}: {PROCESS_FILE} is not a JSON object")
    for name in _NUMBERS & process.keys():
        if type(process[name]) is not int or abs(process[name]) >= _MAX_ABS:
            raise JournalError(f"{folder}: {name} of {PROCESS_FILE} is not a 64-bit integer")
    counts = process.get("coverage", {})
    if not isinstance(counts, dict) or any(type(count) is not int for count in counts.values()):
        raise JournalError(f"{folder}: coverage of {PROCESS_FILE} holds no counts")
    with contextlib.suppress(OSError), (folder / ENDED_FILE).open("rb") as file:
        noted = file.read(_MAX_SIGNAL_BYTES).rstrip(b"\0").decode("ascii", "replace")
        first = noted.removeprefix(_SIGNAL).partition(_SIGNAL)[0]  # it may be sent twice
        name, _, thread = first.partition(_IN)
        process["ended"] = _SIGNAL + name if noted else process.get("ended", "")
        if thread.isdecimal():
            process["ended_thread"] = int(thread)
    if terminated_ns(folder, process) is not None:
        process["ended"] = _TERMINATED
    process["calibration"] = _calibration(folder / CALIBRATION_FILE)
    if not process.get("closed"):
        process["end_ns"] = max(process.get("end_ns") or 0, _alive_ns(folder))
    return process


def segment_names(journal: Path) -> frozenset[str]:
    """Returns `<process>/<segment>` of every segment in a run's journal; empty if it is gone."""
    try:
        found = journal.glob(f"*/*{SEGMENT_SUFFIX}")
        return frozenset(f"{path.parent.name}/{path.name}" for path in found)
    except OSError:
        return frozenset()


def terminated_ns(folder: Path, process: Mapping[str, Any]) -> int | None:
    """Returns when SIGTERM ended a process of the portable engine, ns; None if it did not.

    faulthandler writes stacks without a time, so the files' ages are compared. A process whose
    watchdog looked afterwards lived on: SIGTERM ended a child that it had just forked.
    """
    if process.get("engine") != "portable" or process.get("closed"):
        return None
    with contextlib.suppress(OSError):
        stacks, alive = ((folder / name).stat() for name in (STALL_STACKS_FILE, ALIVE_FILE))
        later = stacks.st_mtime_ns - alive.st_mtime_ns
        if stacks.st_size and later >= 0:
            return _alive_ns(folder) + later
    return None


def _alive_ns(folder: Path) -> int:
    """Returns when the process's watchdog last looked, ns; 0: never."""
    with contextlib.suppress(OSError, struct.error), (folder / ALIVE_FILE).open("rb") as file:
        return int(struct.unpack("<q", file.read(8))[0])
    return 0


def _calibration(path: Path) -> Calibration | None:
    """Returns the measurement of the clock; None: it was not measured."""
    try:
        with path.open("rb") as file:
            return Calibration.parse(json.loads(file.read(_MAX_JSON_BYTES)))
    except (OSError, *INVALID_JSON, KeyError, TypeError):
        return None


def read_texts(folder: Path) -> tuple[str, ...]:
    """Returns the interned texts by id, up to a length of 0 or a truncated text."""
    texts = [""]
    try:
        with (folder / STRINGS_FILE).open("rb") as file:
            data = file.read(_MAX_READ_TEXT_BYTES)
    except OSError:
        return tuple(texts)
    offset = 0
    while offset + 4 <= len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if not length or offset + length > len(data):
            break
        text = data[offset : offset + length].rstrip(b"\0")
        texts.append(text.decode("utf-8", "replace"))
        offset += length
    return tuple(texts)


def read_records(path: Path) -> Records:
    """Returns the complete records of a segment: those whose kind byte was stored."""
    size = path.stat().st_size
    count = max(0, size - HEADER_BYTES) // RECORD_BYTES
    found = np.fromfile(path, RECORD_DTYPE, count, offset=HEADER_BYTES)
    whole = _complete(found)
    return found if whole.all() else take(found, whole)


def take(records: Records, which: NDArray[Any]) -> Records:
    """Returns the records at positions, or of a mask.

    Copied as 64-bit words: numpy copies structures field by field, which takes 25 times as long.
    """
    chosen: Records = _words(records)[which].reshape(-1).view(RECORD_DTYPE)
    return chosen


def concatenated(parts: Sequence[Records]) -> Records:
    """Returns the records of all parts, in order."""
    whole: Records = np.concatenate([_words(part) for part in parts]).reshape(-1).view(RECORD_DTYPE)
    return whole


def _words(records: Records) -> NDArray[np.uint64]:
    return records.view("<u8").reshape(len(records), RECORD_BYTES // 8)


def _current(
    segments: list[tuple[int, Path, tuple[Any, ...]]],
) -> list[tuple[int, Path, tuple[Any, ...]]]:
    """Returns the segments by number, from the last one that replaces all before it."""
    segments = sorted(segments, key=lambda s: s[0])
    replacing = [i for i, (_, path, _) in enumerate(segments) if _parts(path)]
    return segments[replacing[-1] :] if replacing else segments


def _parts(first: Path) -> int:
    with first.open("rb") as file:
        return int(struct.unpack_from("<I", file.read(HEADER_BYTES), PARTS_OFFSET)[0])


def _complete(records: Records) -> NDArray[np.bool_]:
    kinds = np.ascontiguousarray(records["kind"])
    whole: NDArray[np.bool_] = (kinds != RecordKind.NONE) & (kinds <= _LAST_KIND)
    return whole


def _cut(header: tuple[Any, ...], *, full: bool) -> bool:
    """Returns True if a file ends within a record, or is `full` and shorter than its header says.

    A segment is full if another follows. The last one of a thread and those left by compaction are
    trimmed to their records.
    """
    length = header[13] - HEADER_BYTES
    return length % RECORD_BYTES != 0 or (full and length < header[3] * RECORD_BYTES)


def _read_header(path: Path) -> tuple[Any, ...]:
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise JournalError(f"{path}: is not a journal segment (expected {MAGIC.decode()} first)")
    header: tuple[Any, ...] = HEADER.unpack_from(data)
    header += (*struct.unpack_from("<Q", data, OVERWRITTEN_OFFSET), size)
    if header[1] != RECORD_BYTES or header[2] != HEADER_BYTES:
        raise JournalError(
            f"{path}: has records of {header[1]} bytes, this version reads {RECORD_BYTES}"
        )
    if size > 2 * LAST_SEGMENT_BYTES:
        raise JournalError(f"{path}: is larger than any segment")
    if header[6] > _MAX_THREAD_KIND:
        raise JournalError(f"{path}: has thread kind {header[6]}, expected 0 to {_MAX_THREAD_KIND}")
    return header


__all__ = [
    "RECORD_DTYPE",
    "JournalError",
    "ProcessLog",
    "Records",
    "ThreadLog",
    "concatenated",
    "read_process",
    "read_process_file",
    "read_records",
    "read_texts",
    "take",
    "terminated_ns",
]
