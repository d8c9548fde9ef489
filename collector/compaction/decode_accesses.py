"""Decodes ACCESS records into the access table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..journal.journal import ACCESS_FIELDS, AccessFlag, RecordKind
from .arrow_columns import by_start
from .reader import Records, take

ACCESS_DTYPE = np.dtype([(name, kind) for name, kind in ACCESS_FIELDS])
_HALF = np.dtype(
    [
        ("version0", "<u4"),
        ("version1", "<u4"),
        ("storage", "<u8"),
        ("offset", "<i8"),
        ("bytes", "<i8"),
    ]
)
"""Layout of either access of a record; each uses another one of the two versions."""
_FLAGS_BITS = 8  # of one access within `flags`


def access_columns(records: Records, kinds: NDArray[np.uint8]) -> dict[str, Any] | None:
    """Returns the columns of the access table, by start; None without accesses.

    An access belongs to the next OP record of its thread, unless it has its own instant. Accesses
    of an operator that had not ended are left out, because the next OP record belongs to another.
    `kinds` is the column of the records.
    """
    positions = np.flatnonzero(kinds == RecordKind.ACCESS)
    if not len(positions):
        return None
    is_op = (kinds == RecordKind.OP) & (records["end"] != 0)
    ops = take(records, np.flatnonzero(is_op))
    owners = np.cumsum(is_op, dtype=np.int32)[positions]
    pairs = take(records, positions).view(ACCESS_DTYPE)
    apart = (pairs["flags"] & AccessFlag.APART) != 0
    made = pairs["storage1"][apart].astype(np.int64)
    owned = (owners < len(ops)) | apart
    owners[apart] = len(ops) + np.arange(len(made), dtype=np.int32)
    starts, ends = np.concatenate([ops["start"], made]), np.concatenate([ops["end"], made])
    depths = np.concatenate([ops["depth"], np.zeros(len(made), ops["depth"].dtype)])
    pairs, owners = pairs[owned], owners[owned]
    if not len(pairs):
        return None
    # In the order of the op table; accesses of one operator as stored.
    rank = np.empty(len(starts), np.int32)
    rank[by_start(starts, depths)] = np.arange(len(starts), dtype=np.int32)
    order = np.argsort(rank[owners], kind="stable")
    record = np.repeat(order, np.clip(pairs["count"][order], 1, 2))
    second = np.zeros(len(record), np.uint8)
    second[1:] = record[1:] == record[:-1]
    words = pairs.view("<u8").reshape(-1, _HALF.itemsize // 8)
    halves = words[2 * record + second].reshape(-1).view(_HALF)
    flags = pairs["flags"][record] >> (_FLAGS_BITS * second)
    strided = (flags & AccessFlag.STRIDED) != 0
    owner = owners[record]
    start = starts[owner]
    return {
        "start_ns": start,
        "duration_ns": ends[owner] - start,
        "depth": depths[owner],
        "storage": halves["storage"],
        "offset": halves["offset"],
        "bytes": halves["bytes"],
        "run": np.where(strided, pairs["offset1"][record], halves["bytes"]),
        "stride": np.where(strided, pairs["bytes1"][record], 0),
        "stream": pairs["stream"][record],
        "version": np.where(second, halves["version0"], halves["version1"]),
        "write": (flags & AccessFlag.WRITE) != 0,
        "birth": (flags & AccessFlag.BIRTH) != 0,
    }
