"""A journal that holds a record of every kind, and what damage may make of its fields."""

from __future__ import annotations

import itertools
import os
import resource
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lanescope.collector.format.names import GRAPH_SERIES
from lanescope.collector.format.record_kinds import PhaseKind
from lanescope.collector.journal.journal import (
    ACCESS_FIELDS,
    FIELDS,
    HEADER,
    HEADER_BYTES,
    OPEN_OFFSET,
    OVERWRITTEN_OFFSET,
    PARTS_OFFSET,
    RECORD_BYTES,
    TENSOR_FIELDS,
    TENSOR_MORE_FIELDS,
    RecordKind,
    float_bits,
)
from tests.collector.compaction.record_writers import WRITERS
from tests.support.growing import begin

LAYOUTS = {
    RecordKind.ACCESS: np.dtype(list(ACCESS_FIELDS)),
    RecordKind.TENSOR: np.dtype(list(TENSOR_FIELDS)),
    RecordKind.TENSOR_MORE: np.dtype(list(TENSOR_MORE_FIELDS)),
}
RECORD = np.dtype(list(FIELDS))

WHOLE = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, -1, -(2**31), -(2**63))
FLOATS = (float("nan"), float("inf"), float("-inf"), 1e300, -1.0)

BEYOND = 512 << 20
"""Bytes of address space that reading a damaged journal of a few KB may take beyond its use,
the stacks of some threads among them."""

Change = tuple[str, tuple[tuple[int, bytes], ...]]
"""What it is called, and bytes by their place in the segment."""


def write_journal(run: Path) -> Path:
    """Records each kind of record, as a killed process leaves them; returns the segment."""
    recorder = begin(run, pid=7, host="h", engine="native")
    state = recorder.thread()
    state.phase, state.module = recorder.intern("warm-up"), recorder.intern("blocks.0")
    for write in WRITERS.values():
        write(recorder)
    recorder.put(state, RecordKind.MODULE, name=recorder.intern("blocks.0"), extra=12)
    recorder.put(state, RecordKind.STORAGE, name=recorder.intern("blocks.0.weight"), extra=0x7F40)
    for start in (200, 300, 400):
        recorder.put(
            state,
            RecordKind.PHASE,
            scope=PhaseKind.backward,
            name=recorder.intern("backward"),
            start=start,
            end=start + 60,
        )
        recorder.put(
            state,
            RecordKind.VALUE,
            name=recorder.intern(GRAPH_SERIES + "MulBackward0"),
            start=start + 5,
            sequence=float_bits(3.0),
        )
        recorder.put(
            state,
            RecordKind.PHASE,
            scope=PhaseKind.optimizer,
            name=recorder.intern("SGD"),
            start=start + 70,
            end=start + 80,
        )
    state.journal.push_open(0, RecordKind.OP, 0, 1, 620, 0, 0)
    (segment,) = run.rglob("*.lsj")
    data = segment.read_bytes()
    records = data[HEADER_BYTES:]
    count = next(at for at in range(0, len(records), RECORD_BYTES) if not records[at])
    segment.write_bytes(data[: HEADER_BYTES + count])
    return segment


def changes(data: bytes) -> Iterator[Change]:
    """Each field of each record and of the header, set to each of the values that fit it."""
    for name, size, at in _fields(data):
        for value in _values(size):
            yield f"{name} = {value.hex()}", ((at, value),)


def changes_of_all(data: bytes) -> Iterator[Change]:
    """Each field set to a value in all records at once, so that few runs have all there is."""
    for name, group in itertools.groupby(
        sorted((field.partition(" ")[2], at, size) for field, size, at in _fields(data)),
        key=lambda field: field[0],
    ):
        places = list(group)
        for value in _values(places[0][2]):
            yield f"{name} = {value.hex()}", tuple((at, value) for _, at, _ in places)


def _fields(data: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, size and place of all fields."""
    for at in range(HEADER_BYTES, len(data), RECORD_BYTES):
        kind = RecordKind(data[at])
        layout = LAYOUTS.get(kind, RECORD)
        for name in layout.names or ():
            yield f"{kind.name}@{at} {name}", layout[name].itemsize, at + layout.fields[name][1]
    at = 0
    for position, letter in enumerate(HEADER.format.lstrip("<").replace("8s", "q")):
        size = struct.calcsize(f"<{letter}")
        yield f"header header{position}", size, at
        at += size
    yield "header parts", 4, PARTS_OFFSET
    yield "header overwritten", 8, OVERWRITTEN_OFFSET
    for name in RECORD.names or ():
        yield f"open open-{name}", RECORD[name].itemsize, OPEN_OFFSET + RECORD.fields[name][1]


def _values(size: int) -> list[bytes]:
    found = {(value % (1 << 8 * size)).to_bytes(size, "little") for value in WHOLE}
    if size == 8:
        found |= {struct.pack("<d", value) for value in FLOATS}
    return sorted(found)


def changed(data: bytes, change: Change) -> bytes:
    """The segment with a change."""
    made = bytearray(data)
    for at, value in change[1]:
        made[at : at + len(value)] = value
    return bytes(made)


def failures(look: Callable[[Change], None], wanted: Iterable[Change]) -> list[str]:
    """What `look` raises of each change, in a forked child whose memory is limited."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with open(writing, "w", encoding="utf-8", errors="replace") as report:
            _look(look, wanted, report.write)
            report.write("end\n")
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as report:
        lines = report.read().splitlines()
    os.waitpid(child, 0)
    return lines[:-1] if lines[-1:] == ["end"] else [*lines, "and then the child died"]


def _look(
    look: Callable[[Change], None], wanted: Iterable[Change], report: Callable[[str], object]
) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + BEYOND
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for change in wanted:
        try:
            look(change)
        except BaseException as error:
            report(f"{change[0]}: {type(error).__name__}: {error}".replace("\n", " ") + "\n")
