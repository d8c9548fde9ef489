"""Splits a thread's journal into chunks, which become one part file of each table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..journal.journal import RECORD_BYTES, RecordKind
from .reader import Records, ThreadLog, concatenated

CHUNK_RECORDS = 1_000_000
"""Records decoded at a time: bounds memory and the size of a part file."""


@dataclass(frozen=True)
class Chunk:
    """Records of a thread that become one part file of each table."""

    part: int
    records: Records
    rest: Records  # behind the cut, for the next chunk
    segments: int  # number of the thread's segments that are complete with it


def chunks_of(thread: ThreadLog, *, ended: bool) -> Iterator[Chunk]:
    """Yields a thread's records, cut where no op is open, so that parents stay with children.

    If the thread has `ended`, all records, with the events that were still open last. Else without
    the segment being written to and a small last chunk. The cuts are the same on every attempt, so
    that a part that is written twice is the same file.
    """
    held: list[Records] = []
    count, part = 0, thread.parts
    sealed = thread.segments if ended else thread.segments[:-1]
    if not ended and sum(path.stat().st_size for path in sealed) // RECORD_BYTES < CHUNK_RECORDS:
        return  # asked each second: too few to be read
    for position, path in enumerate(sealed):
        records = thread.read(path)
        held.append(records)
        count += len(records)
        if count < CHUNK_RECORDS:
            continue
        whole = concatenated(held)
        cut = _outermost_end(whole)
        if cut:
            yield Chunk(part, whole[:cut], whole[cut:], position + 1)
            part += 1
            held, count = [whole[cut:]], len(whole) - cut
    if ended:
        held.append(thread.open_events())
        whole = concatenated(held)
        yield Chunk(part, whole, whole[:0], len(thread.segments))


def _outermost_end(records: Records) -> int:
    """Returns the number of records up to the last outermost op."""
    outermost = np.flatnonzero((records["kind"] == RecordKind.OP) & (records["depth"] == 0))
    return int(outermost[-1]) + 1 if len(outermost) else 0
