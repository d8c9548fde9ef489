"""ACCESS records -> the access table: what operators read and wrote, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from .journal import ACCESS_FIELDS, AccessFlag, Kind
from .journal_reader import Records

DTYPE = np.dtype([(name, kind) for name, kind in ACCESS_FIELDS])
_FLAGS_BITS = 8  # of one access within `flags`


def access_columns(records: Records) -> dict[str, Any] | None:
    """Columns of the access table, sorted by start; None without accesses.

    An access belongs to the next OP record of its thread. Those of an operator that had not ended
    are left out: its record never came, and the next one is another's.
    """
    positions = np.flatnonzero(records["kind"] == Kind.ACCESS)
    ops = np.flatnonzero((records["kind"] == Kind.OP) & (records["end"] != 0))
    owners = np.searchsorted(ops, positions)
    positions, owners = positions[owners < len(ops)], owners[owners < len(ops)]
    if not len(positions):
        return None
    pairs = np.ascontiguousarray(records[positions]).view(DTYPE)
    op = records[ops[owners]]
    first = np.arange(len(pairs), dtype=np.float64)
    second = np.flatnonzero(pairs["count"] == 2)
    # The second of a record comes directly after its first.
    order = np.argsort(np.concatenate([first, second + 0.5]), kind="stable")

    def column(one: str, other: str, shift: bool = False) -> Any:
        right = pairs[other][second]
        both = [pairs[one], right >> _FLAGS_BITS if shift else right]
        return np.concatenate(both)[order]

    def owned(name: str) -> Any:
        return np.concatenate([op[name], op[name][second]])[order]

    flags = column("flags", "flags", shift=True)
    start = owned("start")
    columns = {
        "start_ns": start,
        "duration_ns": owned("end") - start,
        "depth": owned("depth").astype(np.int16),
        "storage": column("storage0", "storage1").astype(np.int64),
        "offset": column("offset0", "offset1"),
        "bytes": column("bytes0", "bytes1"),
        "version": column("version0", "version1").astype(np.int64),
        "write": (flags & AccessFlag.WRITE) != 0,
        "birth": (flags & AccessFlag.BIRTH) != 0,
    }
    by_start = np.lexsort((columns["depth"], start))
    return {name: values[by_start] for name, values in columns.items()}
