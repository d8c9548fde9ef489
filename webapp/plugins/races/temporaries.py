"""Memory that an operator takes for itself while it runs.

A kernel may make a tensor past the dispatcher and then call operators on it: `zero_` of the buffer
that the backward of a layer norm adds up in. Nothing says that the storage is new, and at its
address another thread's tensor may have lain. But what an operator is given is recorded: a storage
that is not among it, and that a call within it writes first, is one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Columns = dict[str, NDArray[Any]]

KERNELS = "aten::"
"""What torch itself brings is written in C++ and touches nothing that it is not given."""


def begins_scratch(every: Columns, rows: Columns, name: Callable[[Ints, Ints], list[str]]) -> Flags:
    """Which of `rows` write to memory of an operator around them, and so begin a storage.

    `every`: all accesses of a thread (start_ns, duration_ns, depth); `rows`: those that do not lie
    within another's to the same storage (`access_table.outermost`). `name` tells the operators of a
    thread by start and depth. An operator that is made of others has no accesses of its own, and is
    none of those that are looked for.
    """
    found = np.zeros(len(rows["start_ns"]), bool)
    nested = np.flatnonzero((rows["depth"] > 0) & rows["write"] & ~rows["birth"].astype(bool))
    if not len(nested):
        return found
    depth, start = rows["depth"][nested].astype(np.int64), rows["start_ns"][nested]
    around = np.full(len(nested), -1, np.int64)  # start of the outermost operator that is one
    for level in np.unique(every["depth"][every["depth"] < depth.max()]).tolist():
        units = np.unique(
            np.stack([every["start_ns"], every["start_ns"] + every["duration_ns"]])[
                :, every["depth"] == level
            ],
            axis=1,
        )
        at = np.searchsorted(units[0], start, side="right") - 1
        inside = (at >= 0) & (depth > level) & (around < 0)
        inside[inside] = units[1][at[inside]] >= start[inside]
        chosen = np.flatnonzero(inside)
        if not len(chosen):
            continue
        starts = units[0][at[chosen]]
        kernels = [one.startswith(KERNELS) for one in name(starts, np.full(len(starts), level))]
        around[chosen[kernels]] = starts[kernels]
    births: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows["birth"]).tolist():
        births.setdefault(int(rows["storage"][row]), []).append(int(rows["start_ns"][row]))
    for i in np.flatnonzero(around >= 0).tolist():
        known = births.setdefault(int(rows["storage"][nested[i]]), [])
        # Made by a call within it, or written before by another one.
        if not any(around[i] <= born <= start[i] for born in known):
            known.append(int(start[i]))
            found[nested[i]] = True
    return found
