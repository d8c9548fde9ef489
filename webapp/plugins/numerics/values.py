"""Finds the operator that made the first NaN, and tensors with unrecorded writes.

Both are in the tensor table (level numerics). A number that is not finite is made by the operator
that found none among its inputs and left one; all that follows has inherited it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format.names import LOSS_SCALE, SKIPPED_STEPS
from lanescope.webapp.analysis.access_site import phase_names
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import at_place, thread_lane, timeline_address
from lanescope.webapp.analysis.op_inputs import TENSOR_COLUMNS, operands
from lanescope.webapp.analysis.parameter_history import logged, rank_gradient_rows
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.analysis.tensor_fingerprints import NOT_LOOKED_AT
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_OP = ["start_ns", "duration_ns", "depth", "name", "module", "phase", "step", "stack"]
_FILLING = ("copy", "fill", "full", "full_like", "masked_fill", "new_full", "tensor", "where")
_WORD = 2**64 - 1


def not_finite(run: Run) -> list[Finding]:
    """Returns findings of kind `nan`: of each rank the operator that made a NaN first, from finite
    inputs if there is one. Where there is no NaN, as information the first that made an infinity of
    finite inputs, which may be meant.

    Raises NotApplicable where values were not recorded.
    """
    _recorded(run)
    found = []
    for rank in run.ranks:
        made = _first_made(run, rank)
        if made:
            found.append(_nan_finding(run, rank, made))
    return found


def unrecorded_writes(run: Run) -> list[Finding]:
    """Returns findings of kind `unrecorded_write`, one per line that read what no recorded operator
    wrote.

    Raises NotApplicable where values were not recorded.
    """
    _recorded(run)
    groups: dict[tuple[int, str | None, str, str], list[tuple[str, Any, Any]]] = {}
    for rank, thread in _threads(run):
        rows = run.events("tensor", rank, thread, [*TENSOR_COLUMNS, "expected"])
        rows = rows.filter(pc.is_valid(rows["expected"]))
        for tensor, op in _with_ops(run, rank, thread, rows):
            key = (rank, where_of(run, rank, op["stack"]), op["name"], tensor["position"])
            groups.setdefault(key, []).append((thread, tensor, op))
    return [_write_finding(run, *key, group) for key, group in groups.items()]


def _recorded(run: Run) -> None:
    if not run.counts["tensor"]:
        raise NotRecorded("record with --level numerics")


def _threads(run: Run) -> Iterator[tuple[int, str]]:
    for thread in run.threads:
        yield thread.rank, thread.thread


@dataclass(frozen=True)
class _Made:
    """A tensor that was not finite, and its operator."""

    weight: int  # how well it shows the origin: one of _NAN_OF_FINITE, ...
    thread: str
    tensor: dict[str, Any]
    op: dict[str, Any]


_MAX_PATH = 16
"""Operators between a NaN and the infinity that it comes from."""

_NAN_OF_FINITE, _NAN, _INFINITE, _LEFT_OUT = range(4)
"""What is looked for, the best first: a NaN made of finite numbers, any NaN, an infinity made of
finite numbers, a NaN made of infinities in a step that a gradient scaler left out because of them.
"""


def _first_made(run: Run, rank: int) -> dict[int, _Made]:
    """Of each kind of _NAN_OF_FINITE, ... the first of a rank."""
    best: dict[int, _Made] = {}
    skips = _Skips(run, rank)
    for where, thread in _threads(run):
        if where != rank:
            continue
        rows = run.events("tensor", rank, thread, [*TENSOR_COLUMNS, "finite_inputs", "unset"])
        # Uninitialised memory holds arbitrary values, which no operator computed.
        rows = rows.filter(pc.invert(rows["unset"].fill_null(False)))
        made, nan = rows["finite_inputs"].fill_null(False), pc.greater(rows["nan"], 0)
        infinite = pc.and_(pc.greater(rows["inf"], 0), made)
        wanted = ((_NAN_OF_FINITE, pc.and_(nan, made)), (_NAN, nan), (_INFINITE, infinite))
        for weight, chosen in wanted:
            for tensor, op in _with_ops(run, rank, thread, rows.filter(chosen)):
                if _on_purpose(tensor, op) and weight != _NAN:
                    continue
                left_out = weight == _NAN and skips.left_out(op)
                one = _Made(_LEFT_OUT if left_out else weight, thread, tensor, op)
                if one.weight not in best or _start(one) < _start(best[one.weight]):
                    best[one.weight] = one
                if not left_out:
                    break
    return best


def _start(made: _Made) -> int:
    start: int = made.tensor["start_ns"]
    return start


class _Skips:
    """When a rank's gradient scalers left steps out: gradients of these may be infinite, and NaN
    after that, which is how a scale is found to be too high.
    """

    def __init__(self, run: Run, rank: int) -> None:
        self._updates, self._skips = (
            np.sort(logged(run, rank, name)["time_ns"].to_numpy(np.int64))
            for name in (LOSS_SCALE, SKIPPED_STEPS)
        )
        self._forward = phase_names(run, rank).get("forward", set()) if len(self._skips) else set()

    def left_out(self, op: dict[str, Any]) -> bool:
        """Whether an operator, not one of a forward pass, worked for a step that was left out."""
        start = op["start_ns"]
        at = int(np.searchsorted(self._skips, start))
        if at == len(self._skips) or op["phase"] in self._forward:
            return False
        next_update = int(np.searchsorted(self._updates, start))
        ends = self._updates[next_update] if next_update < len(self._updates) else self._skips[at]
        return bool(self._skips[at] <= ends)


def _on_purpose(tensor: dict[str, Any], op: dict[str, Any]) -> bool:
    """True if the operator did not compute the value: it was an argument, or was read."""
    return _fills(op) or tensor["position"].startswith("read")


def _fills(op: dict[str, Any]) -> bool:
    """True for operators that only store an argument, such as a mask's infinities."""
    return op["name"].rpartition("::")[2].rstrip("_") in _FILLING


def _deed(tensor: dict[str, Any], op: dict[str, Any], kind: str) -> str:
    if _fills(op):
        return f"was given {kind} values to store"
    if tensor["position"].startswith("read"):
        return f"found {kind} values that no recorded operator made"
    source = "finite ones" if tensor["finite_inputs"] else "some that were not finite"
    return f"made the first {kind} values out of {source}"


def _advice(tensor: dict[str, Any], op: dict[str, Any]) -> str:
    if _fills(op):
        return "Expected for a mask; otherwise check the fill value."
    if tensor["position"].startswith("read"):
        return "Check the data, and what else writes to that tensor."
    return "Check its inputs for zeros, negative numbers and overflow: add an epsilon, or clamp."


def _with_ops(
    run: Run, rank: int, thread: str, tensors: pa.Table
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows of the tensor table with their operators, in time; not those whose memory is foreign."""
    if not len(tensors):
        return
    starts = pc.unique(tensors["start_ns"])
    ops = run.events("op", rank, thread, columns=_OP)
    ops = ops.filter(pc.is_in(ops["start_ns"], starts)).to_pylist()
    by_place = {(op["start_ns"], op["depth"]): op for op in ops}
    for tensor in tensors.to_pylist():
        op = by_place.get((tensor["start_ns"], tensor["depth"]))
        if op is not None and op["name"] not in NOT_LOOKED_AT:
            yield tensor, op


def _nan_finding(run: Run, rank: int, found: dict[int, _Made]) -> Finding:
    made, before = found[min(found)], found.get(_INFINITE)
    error, followed = made.weight <= _NAN, ""
    if made.weight == _NAN and before is not None and _comes_from(run, rank, made, before):
        line = where_of(run, rank, made.op["stack"])
        followed = f"; {made.op['name']} makes NaN values of them" + at_place(line)
        made = before
    thread, tensor, op = made.thread, made.tensor, made.op
    kind, count = ("NaN", tensor["nan"]) if tensor["nan"] else ("infinite", tensor["inf"])
    where = where_of(run, rank, op["stack"])
    at = at_place(where)
    module = f" in {op['module']}" if op["module"] else ""
    place = (thread, op["start_ns"], op["depth"])
    changes = op["name"].endswith("_")
    inputs = [_statistics(one) for one in operands(run, rank, place, in_place=changes)]
    values = f", from {', '.join(_range(one) for one in inputs)}" if inputs else ""
    values += followed
    if error and not _stays(run, rank, made):
        error = False
        values += "; no gradient and no single number has one later"
    if made.weight == _NAN and before is not None and _start(before) < _start(made):
        line = where_of(run, rank, before.op["stack"])
        values += f"; the first infinity is that of {before.op['name']}" + at_place(line)
    if made.weight == _LEFT_OUT:
        values += "; the gradient scaler left that step out"
    return Finding(
        kind="nan",
        severity="error" if error and not _fills(op) else "info",
        title=f"Operator {op['name']}{module}{at} {_deed(tensor, op, kind)}: "
        f"{units.count(count)} in {tensor['shape']} {tensor['dtype']}{values}. "
        f"{_advice(tensor, op)}",
        evidence={
            "op": op["name"],
            "module": op["module"],
            "phase": op["phase"],
            "output": _statistics(tensor),
            "inputs": inputs,
        },
        **_place(run, rank, thread, op),
    )


def _stays(run: Run, rank: int, made: _Made) -> bool:
    """Whether a NaN reaches what the program computes it for: a gradient, or a single number such
    as a loss; else the program replaces it or leaves it out. True for a rank that does not train.
    """
    gradients = rank_gradient_rows(run, rank)
    if gradients.empty or not np.isfinite(gradients.loc[~gradients["missing"], "norm"]).all():
        return True
    for rows in run.pieces("tensor", rank, columns=["start_ns", "nan", "shape"]):
        later = pc.and_(pc.greater(rows["nan"], 0), pc.greater(rows["start_ns"], _start(made)))
        if {"[]", "[1]"} & {*rows.filter(later)["shape"].cast("string").unique().to_pylist()}:
            return True
    return False


def _comes_from(run: Run, rank: int, made: _Made, before: _Made) -> bool:
    """Whether infinities of `before` reached the operator of `made`, each operator on the way being
    the last recorded writer of what the next one read."""
    place, source = ((one.thread, one.op["start_ns"], one.op["depth"]) for one in (made, before))
    for _ in range(_MAX_PATH):
        read = operands(run, rank, place, in_place=True)
        writers = [one["writer"] for one in read if one["inf"] and one["writer"] is not None]
        if source in writers:
            return True
        if not writers:
            return False
        place = writers[0]
    return False


def _range(tensor: dict[str, Any]) -> str:
    if tensor["min"] is None or tensor["max"] is None:
        return str(tensor["shape"])
    return f"{tensor['shape']} of {units.number(tensor['min'])} to {units.number(tensor['max'])}"


def _write_finding(
    run: Run,
    rank: int,
    where: str | None,
    name: str,
    position: str,
    group: list[tuple[str, dict[str, Any], dict[str, Any]]],
) -> Finding:
    thread, tensor, op = group[0]
    advice = (
        "Numpy or C code through a pointer, a compiled kernel or another process writes to its "
        "memory: let it finish first, or copy the tensor."
    )
    place = at_place(where)
    times = f", {units.count(len(group))} times" if len(group) > 1 else ""
    return Finding(
        kind="unrecorded_write",
        severity="warning",
        title=f"Operator {name}{place} read a tensor {tensor['shape']} {tensor['dtype']} that was "
        f"changed since its last recorded write{times}. {advice}",
        evidence={
            "op": name,
            "position": position,
            "found": f"{tensor['hash'] & _WORD:016x}",
            "expected": f"{tensor['expected'] & _WORD:016x}",
            "tensor_values": _statistics(tensor),
            "times": len(group),
            "advice": advice,
        },
        **_place(run, rank, thread, op),
    )


def _place(run: Run, rank: int, thread: str, op: dict[str, Any]) -> dict[str, Any]:
    start = op["start_ns"]
    end = start + (op["duration_ns"] or 0)
    return {
        "rank": rank,
        "thread": thread,
        "step": op["step"],
        "time_ns": start,
        "where": where_of(run, rank, op["stack"]),
        "link": timeline_address(start, end, run.duration_ns, (thread_lane(rank, thread), start)),
    }


def _statistics(tensor: dict[str, Any]) -> dict[str, Any]:
    names = ("position", "shape", "dtype", "mean", "l2", "min", "max", "nan", "inf")
    return {name: tensor[name] for name in names}
