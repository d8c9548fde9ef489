"""Portions of a thread's journal: the records that become one part file of each table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..journal.journal import Kind
from .reader import Records, ThreadLog, joined

CHUNK_RECORDS = 1_000_000
"""Records decoded at a time: bounds memory, and is the size of a part file."""


@dataclass(frozen=True)
class Portion:
    """Records of a thread that become one part file of each table."""

    part: int
    records: Records
    left: Records  # behind the cut, for the next portion
    segments: int  # how many of the thread's segments are used up with it


def portions(thread: ThreadLog, *, ended: bool) -> Iterator[Portion]:
    """A thread's records, cut where no op is open, so that parents stay with children.

    Where the thread has `ended`, all of them, and last the events that were still open. Else the
    segment that is being written to and a last small portion are left out. The same on every
    attempt, so that a part that was written twice is the same file.
    """
    held: list[Records] = []
    count, part = 0, thread.parts
    sealed = thread.segments if ended else thread.segments[:-1]
    for position, path in enumerate(sealed):
        records = thread.read(path)
        held.append(records)
        count += len(records)
        if count < CHUNK_RECORDS:
            continue
        whole = joined(held)
        cut = _outermost_end(whole)
        if cut:
            yield Portion(part, whole[:cut], whole[cut:], position + 1)
            part += 1
            held, count = [whole[cut:]], len(whole) - cut
    if ended:
        held.append(thread.open_events())
        whole = joined(held)
        yield Portion(part, whole, whole[:0], len(thread.segments))


def _outermost_end(records: Records) -> int:
    """How many records there are up to the last op that no other contains."""
    outermost = np.flatnonzero((records["kind"] == Kind.OP) & (records["depth"] == 0))
    return int(outermost[-1]) + 1 if len(outermost) else 0
