"""Reads one large trace with several workers, each a part of the file.

Where a part begins is guessed: behind what looks like the end of an event. A guess is right if the
part before it ends there, between two events; the first part begins with the file. Where one is
wrong, the file is read as a whole.
"""

from __future__ import annotations

import gc
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...format.names import ANY_TOOL
from ..decompress import BLOCK_BYTES
from ..events import decode_events
from ..import_limits import ImportRejected
from ..json_stream import BETWEEN, EVENTS, Document
from ..spill import Trace
from .importer import EventReader

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

MIN_BYTES = 64 << 20
"""Of a part: a worker takes half a second to start, in which it could have read half of that."""

MAX_SEGMENTS = 8


@dataclass(frozen=True)
class Segment:
    """What a worker read, up to the end of its part."""

    reader: EventReader
    whole: bool  # the part begins and ends between two events
    truncated: bool  # the file ends before its document


def read_in_segments(path: Path, folder: Path, workers: Executor) -> Trace | None:
    """Returns the trace of a file that workers read.

    None: the file is small, packed, damaged or of another format, or a guess was wrong.
    """
    bounds = _bounds(path)
    if len(bounds) < 3:
        return None
    futures = []
    for number, (begin, end) in enumerate(pairwise(bounds)):
        own = folder / f"part-{number}"
        own.mkdir()
        last = end == bounds[-1]
        futures.append(workers.submit(_read, str(path), str(own), begin, None if last else end))
    read = [found for future in futures if (found := _result(future)) is not None]
    if len(read) < len(futures) or not all(one.whole for one in read):
        return None
    reader = read[0].reader
    for one in read[1:]:
        reader.append(one.reader)
    trace = reader.finished()
    trace.truncated = read[-1].truncated
    return trace


def _result(future: Future[Segment]) -> Segment | None:
    """Waits for a part; None where it cannot be read: the whole file says why."""
    try:
        return future.result()
    except ImportRejected:
        return None


def _bounds(path: Path) -> list[int]:
    """Returns the positions at which parts begin, then the size of the file."""
    size = path.stat().st_size
    count = min(MAX_SEGMENTS, size // MIN_BYTES)
    found = [0]
    with path.open("rb") as file:
        head = file.read(BLOCK_BYTES)
        if _kind(head) != b"[" and not (_kind(head) == b"{" and b'"%b"' % EVENTS.encode() in head):
            return found
        for number in range(1, count):
            at = file.seek(size * number // count)
            place = BETWEEN.search(file.read(BLOCK_BYTES))
            if place is not None and at > found[-1]:
                found.append(at + place.start() + 1)
    return [*found, size]


def _kind(head: bytes) -> bytes:
    """Returns the first byte of a document."""
    return head.removeprefix(BOM_UTF8).lstrip()[:1]


def _read(path: str, folder: str, begin: int, end: int | None) -> Segment:
    """Reads the part of a file up to `end`, or to its end; without collecting garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        reader = EventReader(Trace.create(Path(path), Path(folder), ANY_TOOL))
        inside = b"" if not begin else _kind(next(_blocks(Path(path), 0, BLOCK_BYTES)))
        blocks = _blocks(Path(path), begin, end)
        document = Document(Path(path), blocks, decode_events, inside)
        reader.read(document)
        whole = document.between or end is None
        return Segment(reader, whole and reader.trace.exported is None, document.truncated)
    finally:
        if collecting:
            gc.enable()


def _blocks(path: Path, begin: int, end: int | None) -> Iterator[bytes]:
    with path.open("rb") as file:
        at = file.seek(begin)
        while block := file.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - at)):
            at += len(block)
            yield block.removeprefix(BOM_UTF8) if at == len(block) else block
