"""Reads journals: of processes that ended, and of those that died in the middle of a record."""

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
    Kind,
)
from ..journal.string_table import MAXIMUM_BYTES
from .clock_fit import Calibration

DTYPE = np.dtype([(name, kind) for name, kind in FIELDS])
Records = NDArray[np.void]

_MAXIMUM_JSON = 1 << 20
_MAXIMUM_NAME = 64
_MAXIMUM_TEXTS = 2 * MAXIMUM_BYTES
"""Bytes of texts that are read: the recorder writes at most half as many."""

NO_JSON = (ValueError, RecursionError)
"""What reading JSON raises that is damaged, or nested deeper than Python's stack."""

_NUMBERS = {"rank", "world_size", "pid", "start_ns", "end_ns", "wall_minus_monotonic_ns"}
_FAR = 1 << 63
"""What process.json says in numbers; a process that has not told one yet leaves it out."""

_THREAD_KINDS = frozenset(ThreadKind)
_LAST_KIND = max(Kind)
_SIGNAL = "signal "
_TERMINATED = _SIGNAL + "SIGTERM"


class JournalError(Exception):
    """A journal that cannot be read, in one sentence."""


@dataclass(frozen=True)
class ThreadLog:
    """One thread's segments, oldest first."""

    ordinal: int
    native_id: int
    kind: int
    pid: int
    segments: tuple[Path, ...]
    parts: int  # part files that compaction has made of earlier records
    ring: bool = False  # the process may overwrite segments at any moment

    def records(self) -> Iterator[Records]:
        """The complete records of each segment, in the order in which they were stored."""
        for path in self.segments:
            yield self.read(path)

    def read(self, path: Path) -> Records:
        """The complete records of one of the segments; none if it was overwritten meanwhile."""
        try:
            return read_records(path)
        except FileNotFoundError:
            if self.ring:
                return np.empty(0, DTYPE)
            raise

    def open_events(self) -> Records:
        """What had begun and not ended when the log ends, outermost first."""
        header = self.last_header()
        (depth,) = struct.unpack_from("<I", header, OPEN_DEPTH_OFFSET)
        count = min(int(depth), OPEN_CAPACITY)
        found = np.frombuffer(header, DTYPE, count, OPEN_OFFSET)
        return found[_whole(found)]

    def last_header(self) -> bytes:
        """The header of the segment that is, or was last, written to."""
        try:
            with self.segments[-1].open("rb") as file:
                return file.read(HEADER_BYTES)
        except FileNotFoundError:
            if self.ring:
                return bytes(HEADER_BYTES)
            raise


@dataclass(frozen=True)
class ProcessLog:
    """One process's journal: who it was, its texts, its threads by ordinal."""

    folder: Path
    process: dict[str, Any]
    texts: tuple[str, ...]  # by id; 0 is the empty text
    threads: tuple[ThreadLog, ...]
    damage: tuple[str, ...]  # sentences about segments that were left out

    @property
    def rank(self) -> int:
        """The rank as the process knew it last."""
        return int(self.process["rank"])


def read_process(folder: Path) -> ProcessLog:
    """Open one process's journal. Raises JournalError where it is not one.

    A process that died could not say what it dropped and overwrote, but its segments' headers did:
    that is in the `coverage` of `process`.
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
    """process.json. Raises JournalError where it is not there or not what it should be."""
    try:
        with (folder / PROCESS_FILE).open("rb") as file:
            process = json.loads(file.read(_MAXIMUM_JSON))
    except (OSError, *NO_JSON) as error:
        raise JournalError(f"{folder}: {PROCESS_FILE} cannot be read ({error})") from error
    if not isinstance(process, dict):
        raise JournalError(f"{folder}: {PROCESS_FILE} is no JSON object")
    for name in _NUMBERS & process.keys():
        if type(process[name]) is not int or abs(process[name]) >= _FAR:
            raise JournalError(f"{folder}: {name} of {PROCESS_FILE} is no number of 64 bits")
    counts = process.get("coverage", {})
    if not isinstance(counts, dict) or any(type(count) is not int for count in counts.values()):
        raise JournalError(f"{folder}: coverage of {PROCESS_FILE} holds no counts")
    with contextlib.suppress(OSError), (folder / ENDED_FILE).open("rb") as file:
        noted = file.read(_MAXIMUM_NAME).rstrip(b"\0").decode("ascii", "replace")
        first = noted.removeprefix(_SIGNAL).partition(_SIGNAL)[0]  # whoever ends it may ask twice
        process["ended"] = _SIGNAL + first if noted else process.get("ended", "")
    if terminated_ns(folder, process) is not None:
        process["ended"] = _TERMINATED
    process["calibration"] = _calibration(folder / CALIBRATION_FILE)
    if not process.get("closed"):
        process["end_ns"] = max(process.get("end_ns") or 0, _alive_ns(folder))
    return process


def segment_names(journal: Path) -> frozenset[str]:
    """Returns `<process>/<segment>` of every segment in a run's journal; none where it is gone."""
    try:
        found = journal.glob(f"*/*{SEGMENT_SUFFIX}")
        return frozenset(f"{path.parent.name}/{path.name}" for path in found)
    except OSError:
        return frozenset()


def terminated_ns(folder: Path, process: Mapping[str, Any]) -> int | None:
    """When SIGTERM ended a process of the portable engine; None where it did not.

    What notes it for Python writes stacks and no instant: that is told by the age of the files. A
    process whose watchdog looked afterwards lived on; a child that it had just forked was ended.
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
    """When the process's watchdog last looked; 0: it never did."""
    with contextlib.suppress(OSError, struct.error), (folder / ALIVE_FILE).open("rb") as file:
        return int(struct.unpack("<q", file.read(8))[0])
    return 0


def _calibration(path: Path) -> Calibration | None:
    """None where the clock was not measured: then the run says that it is not calibrated."""
    try:
        with path.open("rb") as file:
            return Calibration.parse(json.loads(file.read(_MAXIMUM_JSON)))
    except (OSError, *NO_JSON, KeyError, TypeError):
        return None


def read_texts(folder: Path) -> tuple[str, ...]:
    """The interned texts by id. They end at a length of 0, or with one that is cut off."""
    texts = [""]
    try:
        with (folder / STRINGS_FILE).open("rb") as file:
            data = file.read(_MAXIMUM_TEXTS)
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
    """The complete records of a segment: those whose kind byte was stored."""
    size = path.stat().st_size
    count = max(0, size - HEADER_BYTES) // RECORD_BYTES
    found = np.fromfile(path, DTYPE, count, offset=HEADER_BYTES)
    whole = _whole(found)
    return found if whole.all() else take(found, whole)


def take(records: Records, which: NDArray[Any]) -> Records:
    """The records at some positions, or where a mask says so.

    Copied as words: numpy copies structures field by field, which takes 25 times as long.
    """
    chosen: Records = _words(records)[which].reshape(-1).view(DTYPE)
    return chosen


def joined(parts: Sequence[Records]) -> Records:
    """Records one after another."""
    whole: Records = np.concatenate([_words(part) for part in parts]).reshape(-1).view(DTYPE)
    return whole


def _words(records: Records) -> NDArray[np.uint64]:
    return records.view("<u8").reshape(len(records), RECORD_BYTES // 8)


def _current(
    segments: list[tuple[int, Path, tuple[Any, ...]]],
) -> list[tuple[int, Path, tuple[Any, ...]]]:
    """In order, from the last one that stands for all before it."""
    segments = sorted(segments, key=lambda s: s[0])
    standing = [i for i, (_, path, _) in enumerate(segments) if _parts(path)]
    return segments[standing[-1] :] if standing else segments


def _parts(first: Path) -> int:
    with first.open("rb") as file:
        return int(struct.unpack_from("<I", file.read(HEADER_BYTES), PARTS_OFFSET)[0])


def _whole(records: Records) -> NDArray[np.bool_]:
    kinds = np.ascontiguousarray(records["kind"])
    whole: NDArray[np.bool_] = (kinds != Kind.NONE) & (kinds <= _LAST_KIND)
    return whole


def _cut(header: tuple[Any, ...], *, full: bool) -> bool:
    """Whether a file ends within a record, or one that another follows was not written to its end.

    The last one of a thread is trimmed to its records, and so is what compaction leaves of others.
    """
    length = header[13] - HEADER_BYTES
    return length % RECORD_BYTES != 0 or (full and length < header[3] * RECORD_BYTES)


def _read_header(path: Path) -> tuple[Any, ...]:
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise JournalError(f"{path}: is no journal segment (expected {MAGIC.decode()} first)")
    header: tuple[Any, ...] = HEADER.unpack_from(data)
    header += (*struct.unpack_from("<Q", data, OVERWRITTEN_OFFSET), size)
    if header[1] != RECORD_BYTES or header[2] != HEADER_BYTES:
        raise JournalError(
            f"{path}: has records of {header[1]} bytes, this version reads {RECORD_BYTES}"
        )
    if size > 2 * LAST_SEGMENT_BYTES:
        raise JournalError(f"{path}: is larger than any segment")
    if header[6] not in _THREAD_KINDS:
        raise JournalError(f"{path}: is of a thread of kind {header[6]}, which there is not")
    return header


__all__ = [
    "DTYPE",
    "JournalError",
    "ProcessLog",
    "Records",
    "ThreadLog",
    "joined",
    "read_process",
    "read_process_file",
    "read_records",
    "read_texts",
    "take",
    "terminated_ns",
]
