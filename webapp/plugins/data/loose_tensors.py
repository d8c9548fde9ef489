"""Finds tensors that are to be learned and that no optimizer holds, as weights of several losses.

Found where tensors that no module has are leaves of the first graph, operators outside of modules
alone read them, and in each step backward adds to as many gradients that nothing reads, zeroes or
lets go of. A program that calls autograd.grad() may need such a leaf for derivatives of its input.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ops_named, phases_of_kind, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.plugins.losses.loss_graph import LossGraph, each_graph, graph_finding
from lanescope.webapp.plugins.losses.tensor_reads import OPERATOR_KEY
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

_MIN_STEPS = 5
_MOST_BYTES = 4096
"""Of a gradient. What is larger may be data."""

_NODE, _ADDS = "AccumulateGrad", "aten::add_"


@each_graph
def loose_tensors(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    need_accesses(run)
    leaves = {one.number for one in graph.nodes.values() if one.name == _NODE and not one.parameter}
    users = [one for one in graph.nodes.values() if leaves & {*one.next}]
    if not users or any(one.module or one.where is None for one in users):
        return None
    steps = _unused(run, rank, graph.thread)
    if len(steps) != len(leaves) or min(steps) < _MIN_STEPS:
        return None
    return graph_finding(
        run,
        rank,
        graph,
        kind="dead_parameter",
        title=f"A tensor{users[0].at}{and_more(len(leaves), 'tensor')} requires a gradient and "
        f"gets one in {units.count(min(steps))} steps, and nothing uses it: no optimizer and no "
        "module holds the tensor, so it stays as it was made. Pass it to the optimizer "
        "([*model.parameters(), tensor]), or make it without requires_grad.",
        where=users[0].where,
        evidence={"cause": "loose_tensor", "steps": min(steps)},
    )


def _unused(run: Run, rank: int, thread: str) -> list[int]:
    """Of each gradient that backward adds to and nothing else touches, the number of steps; none
    where a backward adds to no gradient."""
    columns = [*OPERATOR_KEY, "duration_ns", "name", "step"]
    ops = ops_named(run, rank, thread, columns, (_NODE, _ADDS).__contains__).dropna()
    nodes, adds = (ops[ops["name"] == name] for name in (_NODE, _ADDS))
    passes = phases_of_kind(run, schema.PhaseKind.backward, rank, thread).dropna()
    if adds.empty or not _holds(passes, nodes).all():
        return []
    adds = adds[_holds(adds, nodes, within=True)]
    keys = ["storage", *OPERATOR_KEY]
    rows = to_frame(run.events("access", rank, columns=[*keys, "bytes", "write", "birth"]))
    own = rows.merge(adds[[*OPERATOR_KEY, "step"]], on=OPERATOR_KEY)
    own = own[own["write"] & (own["bytes"] <= _MOST_BYTES)]
    first = own.groupby("storage")["start_ns"].min()
    later = rows[rows["start_ns"] >= rows["storage"].map(first)]
    touched = later.groupby("storage").size()
    groups = own.groupby("storage")
    alone = groups.size()[lambda counts: counts == touched[counts.index]].index
    return [int(one) for one in groups["step"].nunique()[alone]]


def _holds(rows: pd.DataFrame, nodes: pd.DataFrame, *, within: bool = False) -> BoolArray:
    """Whether each row holds the begin of a node; `within`: a node holds that of each row."""
    outer, inner = (nodes, rows) if within else (rows, nodes)
    begins = outer["start_ns"].to_numpy()
    ends = begins + outer["duration_ns"].to_numpy("int64")
    starts = np.sort(inner["start_ns"].to_numpy())
    if not within:
        held: BoolArray = np.searchsorted(starts, begins) < np.searchsorted(starts, ends)
        return held
    at = np.searchsorted(begins, inner["start_ns"].to_numpy(), side="right") - 1
    found: BoolArray = (at >= 0) & (inner["start_ns"].to_numpy() < ends[np.maximum(at, 0)])
    return found
