"""At which operators does the gradient end, or pass something by, on its way from the loss?

The forward before the recorded backward is followed from operator to operator by the storages that
they write and read, and held against the graph of autograd nodes. A result is *of* the parameters
where one of them was read on the way to it. A break is

- no_grad: a result of the parameters that made no node, and that the loss depends on all the same;
- integer: the same, of a cast to integers or a comparison, which have no gradient;
- in_place: the same, where what autograd knows by another value was overwritten (`.data`);
- checkpoint: a result of a reentrant checkpoint none of whose inputs needed a gradient;
- detached: another result that was read although the reader's nodes do not lead to its own;
- number: a result of the parameters that the loss does not depend on, made a number of Python;
- no_gradient: a function of the program's own that handed back None, so that parameters which
  nothing else leads to got no gradient.

Operators that others call are one with them. All but the last need reads and writes: level access.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import stack_of
from lanescope.webapp.analysis.forward_ops import (
    DETACH,
    NUMBERS,
    Operator,
    add_accesses,
    forward_rows,
    outermost,
)
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.analysis.parameter_history import gradient_rows, samples
from lanescope.webapp.analysis.stack_frames import frames_of, in_program, own_frames
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

BREAK_CAUSES = {
    "no_grad": "ran without recording a gradient (no_grad, or an operator that has none)",
    "integer": "has integers or truth values as its result, which carry no gradient",
    "in_place": "overwrites what backward knows by its old value",
    "checkpoint": "is a reentrant checkpoint, whose inputs need no gradient",
    "detached": "passes the result on without its gradient",
    "number": "makes a number of a result that nothing else uses, and numbers carry no gradient",
    "no_gradient": "is a function of the program's own whose backward returns no gradient",
}

COMPARISONS = frozenset(
    f"aten::{name}"
    for name in (
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isfinite",
        "isinf",
        "argmax",
        "argmin",
        "argsort",
        "bool",
        "logical_and",
        "logical_not",
        "logical_or",
        "signbit",
        "nonzero",
    )
)
_CHECKPOINT = "CheckpointFunction"
_WHOLE = ("int", "uint", "bool")
_HANDS_ON = ("RegisterPostBackwardFunctionBackward", "_DDPSinkBackward")
"""Functions of torch's wrappers around a model, which return each gradient as they get it."""

_MAX_FUNCTIONS = 50
"""Functions of the program's own that are looked at."""


@dataclass(frozen=True)
class Break:
    """Operators of one name at one line of the program."""

    cause: str
    op: str
    module: str
    where: str  # file:line of the program if it has one, or empty
    count: int
    link: str  # the first of them on the timeline


@lru_cache(maxsize=8)
def breaks(run: Run, rank: int) -> tuple[Break, ...]:
    """Returns the breaks of the recorded graph of a rank, in the order of the forward."""
    nodes = graph_nodes(run, rank)
    if nodes.empty:
        return ()
    rows = forward_rows(run, rank, nodes)
    found = [*_of_operators(run, rank, nodes, rows), *_of_functions(run, rank, nodes, rows)]
    thread = str(nodes["thread"].iloc[0])
    merged: Counter[tuple[str, str, str, str]] = Counter()
    first: dict[tuple[str, str, str, str], str] = {}
    for cause, row in sorted(found, key=lambda one: one[1]):
        op = rows.iloc[row]
        key = (cause, str(op["name"]), str(op["module"]), _line(run, rank, op))
        merged[key] += 1
        start = int(op["start_ns"])
        place = (thread_lane(rank, thread), start)
        first.setdefault(key, timeline_address(start, int(op["end_ns"]), run.duration_ns, place))
    return tuple(Break(*key, count, first[key]) for key, count in merged.items())


def _line(run: Run, rank: int, op: pd.Series) -> str:
    """The program's innermost line that called an operator; without one, the innermost; or ""."""
    stack = stack_of(op)
    frames = own_frames(run, rank, stack) or frames_of(run, rank, stack)
    return f"{frames[0]['file']}:{frames[0]['line']}" if frames else ""


def _of_operators(
    run: Run, rank: int, nodes: pd.DataFrame, rows: pd.DataFrame
) -> Iterable[tuple[str, int]]:
    """(cause, row) of results that go on without their gradient."""
    ops = outermost(rows)
    add_accesses(run, rank, nodes, ops)
    parameters = _parameters(run, rank)
    in_graph = {int(one) for one in nodes["sequence"].dropna()}
    leads = _Leads(nodes, ops)
    alive = [bool(op.made & in_graph) for op in ops]
    writer: dict[int, int] = {}
    sources: list[dict[int, int]] = []  # storage read -> who wrote it
    of_parameters: list[bool] = []
    readers: dict[int, set[int]] = defaultdict(set)
    for number, op in enumerate(ops):
        known = {one: writer[one] for one in (op.reads | op.writes) - op.born if one in writer}
        sources.append(known)
        for other in known.values():
            readers[other].add(number)
        of_parameters.append(
            bool(op.reads & parameters) or any(of_parameters[one] for one in known.values())
        )
        writer |= dict.fromkeys(op.writes, number)
    used = [False] * len(ops)
    for number in reversed(range(len(ops))):
        used[number] = any(
            alive[one] or (not ops[one].made and used[one]) for one in readers[number]
        )
    detaches = _detaches(run, rank, rows)
    for number, op in enumerate(ops):
        before = sources[number].values()
        if op.made:
            if alive[number] and not any(_is_whole(one) for one in op.dtypes):
                for other in set(before):
                    if ops[other].made and not leads.lead(op.made, ops[other].made):
                        between = _between(rows, detaches, ops[other], op)
                        if between is None and ops[other].name == _CHECKPOINT:
                            yield "checkpoint", ops[other].row
                        else:
                            yield "detached", op.row if between is None else between
        elif op.name in NUMBERS:
            lost = [one for one in before if ops[one].made and not (alive[one] or used[one])]
            if any(of_parameters[one] for one in lost):
                yield "number", op.row
        elif used[number] and op.writes and not op.writes <= parameters:
            trained, cause = bool(op.reads & parameters), _cause(op)
            if not of_parameters[number] or not (trained or any(ops[one].made for one in before)):
                continue
            recomputed = [one for one in before if ops[one].made and ops[one].name == _CHECKPOINT]
            if recomputed and cause == "no_grad":
                yield "checkpoint", ops[recomputed[0]].row
                continue
            # What reads a parameter itself would have made a node, whatever else was detached.
            passed = [
                _between(rows, detaches, ops[one], op)
                for one in set(before)
                if ops[one].made and cause == "no_grad" and not trained
            ]
            at = next((one for one in passed if one is not None), None)
            yield (cause, op.row) if at is None else ("detached", at)


def _cause(op: Operator) -> str:
    if op.name in COMPARISONS or _is_whole(op.copies.partition(" ")[0]):
        return "integer"
    return "in_place" if op.name.endswith("_") and not op.name.endswith("__") else "no_grad"


def _is_whole(dtype: str) -> bool:
    return dtype.startswith(_WHOLE)


def _detaches(run: Run, rank: int, rows: pd.DataFrame) -> Int64Array:
    """Rows of detaches, those of the program's own lines first: libraries detach what they log."""
    found = np.flatnonzero(rows["name"].isin(DETACH))
    innermost = [frames_of(run, rank, stack_of(rows.iloc[row]))[:1] for row in found]
    own = np.array([all(in_program(one["file"]) for one in frames) for frames in innermost], bool)
    return np.concatenate([found[own], found[~own]])


def _between(
    rows: pd.DataFrame, detaches: Int64Array, source: Operator, reader: Operator
) -> int | None:
    """The row of the first of `detaches` after one operator and before another."""
    starts = rows["start_ns"].to_numpy()[detaches]
    between = detaches[(starts >= source.end) & (starts < reader.start)]
    return int(between[0]) if len(between) else None


def _parameters(run: Run, rank: int) -> set[int]:
    """Storages of parameters that were to be trained."""
    known = samples(run)
    trainable = set(known.loc[known["trainable"].astype(bool), "parameter"])
    table = run.events("storage", rank, columns=["storage", "name"]).to_pylist()
    return {row["storage"] for row in table if row["name"] in trainable}


class _Leads:
    """Which operators' nodes hand gradients to which, views in between taking no part."""

    def __init__(self, nodes: pd.DataFrame, ops: list[Operator]) -> None:
        self._next = {
            int(node): [int(one) for one in str(following).split()]
            for node, following in zip(nodes["node"], nodes["next"], strict=True)
        }
        known = nodes.dropna(subset="sequence")
        self._sequence = dict(zip(known["node"], known["sequence"].astype(int), strict=True))
        self._nodes: dict[int, list[int]] = defaultdict(list)
        for node, sequence in self._sequence.items():
            self._nodes[sequence].append(int(node))
        # What touches no memory is a view.
        self._made = {one for op in ops if op.reads or op.writes for one in op.made}

    def lead(self, one: set[int], other: set[int]) -> bool:
        """Whether nodes of the first numbers lead to one of the second."""
        waiting = [node for sequence in one for node in self._nodes[sequence]]
        seen = set(waiting)
        while waiting:
            for node in self._next[waiting.pop()]:
                sequence = self._sequence.get(node)
                if sequence in other:
                    return True
                passes = sequence is None or sequence in one or sequence not in self._made
                if passes and node not in seen and node in self._next:
                    seen.add(node)
                    waiting.append(node)
        return False


def _of_functions(
    run: Run, rank: int, nodes: pd.DataFrame, rows: pd.DataFrame
) -> Iterable[tuple[str, int]]:
    """(cause, row) of functions of the program's own that keep gradients from parameters."""
    gradients = gradient_rows(run)
    here = gradients[(gradients["rank"] == rank) & (gradients["step"] == nodes["step"].iloc[0])]
    missing = set(here.loc[here["missing"], "parameter"]) & set(nodes["parameter"])
    own = nodes[nodes["name"].str.endswith("Backward") & nodes["sequence"].notna()]
    own = own[~own["name"].isin(_HANDS_ON)]
    if not missing or own.empty:
        return
    following = {
        int(node): [int(one) for one in str(after).split()]
        for node, after in zip(nodes["node"], nodes["next"], strict=True)
    }
    parameter = dict(zip(nodes["node"], nodes["parameter"], strict=True))
    made = rows.dropna(subset="sequence").drop_duplicates("sequence")
    row_of = dict(zip(made["sequence"].astype(int), made.index, strict=True))
    for node, sequence in zip(own["node"][:_MAX_FUNCTIONS], own["sequence"], strict=False):
        others, waiting = {0}, [0]
        while waiting:
            for after in following[waiting.pop()]:
                if after != node and after not in others and after in following:
                    others.add(after)
                    waiting.append(after)
        if missing - {parameter[one] for one in others} and int(sequence) in row_of:
            yield "no_gradient", int(row_of[int(sequence)])
