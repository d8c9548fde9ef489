"""Turns the sealed segments of a live process into parts, and leaves what must wait.

A thread's used-up segments are replaced by one that holds what is left of them: records behind the
cut, and those that later records complete (a collective whose end is not known yet). A reader
takes that one for all before it, so a death between the two steps below loses and doubles nothing.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from ..journal.journal import HEADER_BYTES, PARTS_OFFSET, Kind
from .chunks import Portion, portions
from .decode import Decoder
from .merge import Pending
from .reader import DTYPE, Records, ThreadLog

_KEPT = (Kind.COLLECTIVE, Kind.COLLECTIVE_END, Kind.MODULE, Kind.STORAGE)


def seal_threads(decoder: Decoder, pending: Pending) -> None:
    """Compact one portion of every thread that has one: about a million records a call."""
    rank = decoder.log.rank
    for thread in decoder.log.threads:
        portion = next(portions(thread, ended=False), None)
        if portion is None:
            continue
        identity = decoder.thread_name(thread)
        for table, rows in decoder.decode(thread, portion.records, collectives=False):
            pending.add_part(rank, identity, table, portion.part, rows)
        pending.commit(decoder)
        _replace(thread, portion, _thread_record(decoder, thread, portion.records))


def _thread_record(decoder: Decoder, thread: ThreadLog, records: Records) -> Records:
    """The thread's name with the span of all its records so far, in one record."""
    known = decoder.thread_row(thread)
    named = records[records["kind"] == Kind.THREAD]
    if known is None or not len(named):
        return np.empty(0, DTYPE)
    record: Records = named[-1:].copy()
    record["start"], record["end"] = known["start_ns"], known["end_ns"]
    return record


def _replace(thread: ThreadLog, portion: Portion, name: Records) -> None:
    used = thread.segments[: portion.segments]
    with used[-1].open("rb") as file:
        header = bytearray(file.read(HEADER_BYTES))
    struct.pack_into("<I", header, PARTS_OFFSET, portion.part + 1)
    kept = portion.records[np.isin(portion.records["kind"], _KEPT)]
    temporary = used[-1].with_name(f".{used[-1].name}")
    temporary.write_bytes(bytes(header) + np.concatenate([name, kept, portion.left]).tobytes())
    os.replace(temporary, used[-1])
    for path in used[:-1]:
        path.unlink()
