"""What an operator found in the tensors that it works on, as far as that was recorded."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.runs.run import Run

_SHAPE = re.compile(r"\[([^\]]*)\]")

OperatorKey = tuple[str, int, int]
"""Thread, start and depth of an operator of a rank."""

TENSOR_COLUMNS = (
    "start_ns",
    "depth",
    "position",
    "shape",
    "dtype",
    "mean",
    "l2",
    "min",
    "max",
    "nan",
    "inf",
    "hash",
)


def tensor_shapes(text: str) -> list[list[int]]:
    """Returns the shapes of `[4, 8] [8]`; an empty one for a part without whole numbers."""
    parts = (one.replace(",", " ").split() for one in _SHAPE.findall(text))
    return [[int(one) for one in part] if all(map(str.isdigit, part)) else [] for part in parts]


def operands(run: Run, rank: int, place: OperatorKey, *, in_place: bool) -> list[dict[str, Any]]:
    """Returns rows of the tensor table, in the order in which the operator touched their storages.

    Each is what the last recorded writer of a storage left there; `writer` is its place, `parts`
    are the first byte and the length of each range of it that is read. What the operator itself
    found and no recorded operator had written stands first; its `writer` is None.
    `in_place`: tensors that the operator changes count too.
    """
    thread, start, depth = place
    own = _accesses(run, rank, place)
    storages = dict.fromkeys(
        row["storage"] for row in own if not row["write"] or (in_place and not row["birth"])
    )
    found = [
        {**row, "writer": None, "parts": []}
        for row in _tensors(run, rank, thread, [start]).get((start, depth), ())
        if row["position"].startswith("read")
    ]
    last = _last_writers(run, rank, list(storages), start)
    left: dict[OperatorKey, dict[int, dict[str, Any]]] = {}
    for writer in {one[0] for one in last.values()}:
        places = [one for one in dict.fromkeys(last.values()) if one[0] == writer]
        around = {one: _around(run, rank, one) for one in places}
        starts = {at for found_in in around.values() for at, _ in found_in}
        tensors = _tensors(run, rank, writer, sorted(starts))
        for one in places:
            left[one] = _left_by(run, rank, one, around[one], tensors)
    for storage in storages:
        if storage in last and storage in left[last[storage]]:
            row = left[last[storage]][storage]
            parts = [[r["offset"], r["bytes"]] for r in own if r["storage"] == storage]
            made_by = (last[storage][0], row["start_ns"], row["depth"])
            found.append({**row, "writer": made_by, "parts": parts})
    return found


def _left_by(
    run: Run,
    rank: int,
    place: OperatorKey,
    around: list[tuple[int, int]],
    tensors: dict[tuple[int, int], list[dict[str, Any]]],
) -> dict[int, dict[str, Any]]:
    """What a writer left in its storages; where that was read as the result of an operator that it
    is part of, the one that this made.
    """
    accesses = _accesses(run, rank, place)
    for one in around:
        if one not in tensors:
            continue
        if one == place[1:]:
            return _by_storage(accesses, tensors[one])
        written = {row["storage"] for row in accesses if row["write"]}
        made = [row for row in tensors[one] if not row["position"].startswith("read")]
        if len(made) == 1:
            return dict.fromkeys(written, made[0])
        # One for many tensors, each written by an operator of its own.
        outer = _by_storage(_accesses(run, rank, (place[0], *one)), tensors[one])
        return {storage: row for storage, row in outer.items() if storage in written}
    return {}


def _around(run: Run, rank: int, place: OperatorKey) -> list[tuple[int, int]]:
    """An operator and those that it is part of, the innermost first, by start and depth."""
    thread, start, depth = place
    ops = run.events("op", rank, thread, ["start_ns", "depth"], window=(start, start + 1))
    found = [(op["start_ns"], op["depth"]) for op in ops.to_pylist() if op["depth"] <= depth]
    return sorted((one for one in found if one[0] <= start), key=lambda one: -one[1])


def _by_storage(
    accesses: list[dict[str, Any]], tensors: list[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """What an operator left in each storage: both tables list its tensors in one order.

    Nothing where they list different numbers of tensors: then it is not known.
    """
    written = [row["storage"] for row in accesses if row["write"]]
    made = [row for row in tensors if not row["position"].startswith("read")]
    return dict(zip(written, made, strict=True)) if len(written) == len(made) else {}


def _accesses(run: Run, rank: int, place: OperatorKey) -> list[dict[str, Any]]:
    thread, start, depth = place
    columns = ["start_ns", "depth", "storage", "offset", "bytes", "write", "birth"]
    rows = run.events("access", rank, thread, columns, window=(start, start + 1)).to_pylist()
    return [row for row in rows if (row["start_ns"], row["depth"]) == (start, depth)]


def _last_writers(run: Run, rank: int, storages: list[int], before: int) -> dict[int, OperatorKey]:
    """Of each storage the last recorded operator that wrote to it before an instant."""
    if not storages:
        return {}
    columns = ["start_ns", "depth", "storage", "write", "thread"]
    rows = run.events("access", rank, columns=columns, window=(0, before))
    rows = rows.filter(pc.and_(pc.is_in(rows["storage"], pa.array(storages)), rows["write"]))
    rows = rows.filter(pc.less(rows["start_ns"], before))
    last: dict[int, OperatorKey] = {}
    for row in rows.to_pylist():
        known = last.get(row["storage"])
        # Of operators within each other, which start at one instant, the innermost wrote last.
        if known is None or known[1:] <= (row["start_ns"], row["depth"]):
            last[row["storage"]] = (row["thread"], row["start_ns"], row["depth"])
    return last


def _tensors(
    run: Run, rank: int, thread: str, starts: list[int]
) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Rows of the operators of a thread that start then, by start and depth."""
    rows = run.events("tensor", rank, thread, list(TENSOR_COLUMNS))
    rows = rows.filter(pc.is_in(rows["start_ns"], pa.array(starts, pa.int64())))
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        found.setdefault((row["start_ns"], row["depth"]), []).append(row)
    return found
