"""Finds terms of a loss without effect: penalties of `autograd.grad()` without create_graph=True,
and scores of hard decisions, as of argmax.

Both are constants to autograd, so they add a number to the loss and no gradient. Found where the
loss of the first backward adds a tensor without gradients that was computed, by operators without
gradients, from what an earlier backward made, or by a hard decision from what the model returned.
So are derivatives in the residual of a differential equation, whose square is the loss: the pass
that made them went through the very outputs which the residual has beside them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, stack_of, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.stack_frames import own_place, phase_place
from lanescope.webapp.plugins.losses.attached_targets import added_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    SAME_NUMBERS,
    LossGraph,
    LossNode,
    each_graph,
    graph_finding,
    input_shapes,
)
from lanescope.webapp.runs.run import Run

_ADDS = ("Add", "Sub")
_MOST = 40
"""Operators between gradients and the loss."""

_HARD = re.compile(r"aten::(argmax|argmin|ge|gt|le|lt|eq|ne|greater|less|sign|round|bucketize)")
"""Operators whose results are steps of their inputs, so no gradient passes."""


_SQUARES = ("Abs", "HuberLoss", "L1Loss", "MseLoss", "Pow", "SmoothL1Loss")
"""What a loss makes of a residual."""

_Pass = tuple[str, int, int]
"""Thread, begin and end of a backward pass."""


class _Origin(NamedTuple):
    where: str  # empty: the pass itself
    hard: str  # operator of a hard decision; empty: computed from gradients
    made_in: _Pass | None = None


@each_graph
def constant_penalty(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if not run.counts_of(rank)["access"]:
        return None
    sums = [
        one
        for one in added_nodes(graph)
        if one.name in _ADDS and len(one.next) == 1 and len(input_shapes(one)) == 2
    ]
    parts = _residuals(graph)
    passes = _passes(run, rank, graph.time_ns) if sums or parts else []
    for one in sums:
        origin = _origin(run, rank, one, passes, graph.thread)
        if origin is not None and origin.where:
            return _finding(run, rank, graph, one, origin)
    for one in parts if passes else ():
        origin = _origin(run, rank, one, passes, graph.thread)
        made_in = None if origin is None else origin.made_in
        if made_in is not None and _went_through(run, rank, graph, one, made_in):
            return _of_residual(run, rank, graph, one, made_in)
    return None


def _residuals(graph: LossGraph) -> list[LossNode]:
    """Sums with a tensor without gradient that the loss squares."""
    found = []
    for error in added_nodes(graph):
        below = graph.below(*error.next[:1], passes=_adds) if error.name in _SQUARES else ()
        found += [one for one in below if one.name in _ADDS and len(one.next) == 1]
    return [one for one in found if len(input_shapes(one)) == 2 and "[]" not in one.shapes]


def _adds(node: LossNode) -> bool:
    return node.name in (*_ADDS, "Neg") or bool(SAME_NUMBERS.fullmatch(node.name))


def _went_through(run: Run, rank: int, graph: LossGraph, node: LossNode, made_in: _Pass) -> bool:
    """Whether a pass went through operators that a node leads to, so that it differentiated the
    same outputs."""
    thread, begin, end = made_in
    starts = {one.start_ns for one in graph.below(node.number)} - {None}
    columns = ["start_ns", "sequence"]
    own = to_frame(run.events("op", rank, thread, columns, (begin, end))).dropna()
    made = to_frame(run.events("op", rank, graph.thread, columns, (0, begin))).dropna()
    later = own[own["start_ns"] >= begin]["sequence"]
    return bool(made.loc[made["start_ns"].isin(starts), "sequence"].isin(later).any())


def _passes(run: Run, rank: int, before_ns: int) -> list[_Pass]:
    """Thread, begin and end of backward passes that ended before an instant."""
    columns = ["thread", "start_ns", "duration_ns"]
    own = phases_of_kind(run, schema.PhaseKind.backward, rank, columns=columns).dropna()
    ends = own["start_ns"] + own["duration_ns"]
    own = own.assign(end=ends)[ends < before_ns]
    return [(str(one.thread), int(one.start_ns), int(one.end)) for one in own.itertuples()]


def _origin(
    run: Run, rank: int, node: LossNode, passes: list[_Pass], thread: str
) -> _Origin | None:
    """Where a term comes from; None: the sum adds nothing of the kind."""
    thread = passes[0][0] if passes else thread
    window = (0, (node.start_ns or 0) + 1)
    columns = ["start_ns", "depth", "sequence", "name", "stack"]
    ops = to_frame(run.events("op", rank, thread, columns, window))
    ops = ops.drop_duplicates(["start_ns", "depth"]).set_index(["start_ns", "depth"]).sort_index()
    rows = to_frame(
        run.events("access", rank, thread, [*columns[:2], "storage", "write", "birth"], window)
    )
    written = rows[rows["write"]]
    read = dict(list(rows[~rows["write"] & ~rows["birth"]].groupby(["start_ns", "depth"])))
    at = [key for key in read if key[0] == node.start_ns][:1]
    ahead, seen = [(key, _Origin("", "")) for key in at], set[tuple[int, int]]()
    while ahead and len(seen) < _MOST:
        key, place = ahead.pop()
        seen.add(key)
        for storage in read[key]["storage"].unique() if key in read else ():
            for origin in _writers(written, storage, key[0]):
                own = next((one for one in passes if one[1] < origin[0] < one[2]), None)
                if own is not None:
                    return _Origin(place.where, "", own)
                if origin not in ops.index or origin in seen:
                    continue
                if not _has_graph(ops, origin):
                    ahead.append((origin, _before(run, rank, ops.loc[origin], place)))
                elif place.hard:
                    return place
    return None


def _writers(written: pd.DataFrame, storage: int, before_ns: int) -> list[tuple[int, int]]:
    """Begin and depth of the operators that wrote a storage since it was allocated."""
    own = written[(written["storage"] == storage) & (written["start_ns"] < before_ns)]
    born = own.loc[own["birth"], "start_ns"]
    own = own[own["start_ns"] >= born.iloc[-1]] if len(born) else own[:0]
    return [*dict.fromkeys(zip(own["start_ns"], own["depth"], strict=True))]


def _has_graph(ops: pd.DataFrame, key: tuple[int, int]) -> bool:
    """Returns whether an operator, or one that called it, has a node in the graph."""
    depth = key[1] + 1
    before = ops.loc[:key, "sequence"].iloc[::-1]
    for (_, own), sequence in before.items():
        if own < depth:
            depth = own
            if sequence == sequence:
                return True
            if not depth:
                break
    return False


def _before(run: Run, rank: int, op: pd.Series, place: _Origin) -> _Origin:
    """The origin so far, one operator further back."""
    if place.hard:
        return place
    name = str(op["name"]) if _HARD.match(str(op["name"])) else ""
    where = own_place(run, rank, stack_of(op)) or ""
    return _Origin(where, name.removeprefix("aten::").partition(".")[0])


def _finding(run: Run, rank: int, graph: LossGraph, node: LossNode, made: _Origin) -> Finding:
    if made.hard:
        what = (
            f"from the result of {made.hard}, which passes no gradient, so it adds a number and "
            "trains nothing. Compute it from probabilities (softmax or sigmoid) instead."
        )
    else:
        what = (
            "from gradients that are constants to autograd, so it adds a number and trains "
            "nothing. Pass create_graph=True to autograd.grad() (or backward()), and leave out "
            "detach()."
        )
    return graph_finding(
        run,
        rank,
        graph,
        title=f"What the loss{node.at} adds is computed at {made.where} {what}",
        where=made.where,
        evidence={"cause": "constant_penalty", "added_at": node.where},
    )


def _of_residual(run: Run, rank: int, graph: LossGraph, node: LossNode, made_in: _Pass) -> Finding:
    where = phase_place(run, rank, schema.PhaseKind.backward.name, made_in[1:])
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The residual{node.at} has derivatives of the outputs that it trains as constants: "
        f"autograd.grad(){at_place(where)} made them without a graph, so the model does not learn "
        "to change them. Pass create_graph=True there.",
        where=where or node.where,
        evidence={"cause": "constant_derivative", "added_at": node.where},
    )
