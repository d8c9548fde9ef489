"""The autograd graph of a step, by module: what hands gradients to what, and what it leaves out.

Nodes belong to the module whose forward operator made them (the same autograd sequence number on
the thread of the forward), those that add up a parameter's gradient to the parameter's module.
Edges point the way gradients flow, from the loss to the parameters.

A module is cut off where it has trainable parameters of its own and none of them is in the graph:

- not_called: no operator ran in it before the backward;
- no_grad: none of its operators made a node: it ran under no_grad, or with its parameters detached;
- not_reached: its operators made nodes, and the loss does not lead to them: the result was
  detached, cast to integers, or not used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.parameter_history import layers_of, samples
from lanescope.webapp.plugins.autograd_graph.module_graph import Graph, graph_by_module
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

NO_GRADIENT_CAUSES = {
    "not_called": "was not called",
    "no_grad": "ran without recording gradients (no_grad, or nothing that needs one)",
    "not_reached": "is not reached from the loss (detached, cast to integers, or not used)",
}


def graph_of(
    run: Run, rank: int, depth: int | None = None, opened: Collection[str] = ()
) -> Graph | None:
    """Returns the graph of a rank, see `graph_by_module`; None: it was not recorded."""
    nodes = graph_nodes(run, rank)
    if nodes.empty:
        return None
    graph = graph_by_module(nodes, int(nodes["step"].iloc[0]), depth, opened)
    return replace(graph, cut_off=dict(cut_off(run, rank)))


@lru_cache(maxsize=8)
def graph_nodes(run: Run, rank: int) -> pd.DataFrame:
    """Returns the rows of the node table of a rank's first recorded graph, with the module of
    each."""
    rows = to_frame(run.events("node", rank))
    if rows.empty:
        return rows.assign(module="")
    rows = rows[rows["time_ns"] == rows["time_ns"].min()]
    forward = forward_operators(run, rank, rows, ["module", "sequence"])
    made = forward.dropna(subset="sequence").drop_duplicates("sequence", keep="last")
    adds = rows["parameter"] != ""
    layers = dict(zip(rows["node"], layers_of(rows["parameter"]), strict=True))
    known = made.sort_values("sequence")
    numbers, modules = known["sequence"].to_numpy("int64"), list(known["module"])
    roots = _roots(run, rank)
    found = []
    for row, own in zip(rows.itertuples(), adds, strict=True):
        targets = {layers[int(one)] for one in str(row.next).split() if int(one) in layers}
        if own:
            found.append(layers[row.node])
        elif len(targets) == 1 and "" not in targets:
            found.append(targets.pop())  # a view of a parameter
        else:
            found.append(_between(row.sequence, numbers, modules, roots))
    return rows.assign(module=found)


@per_rank
def reached_parameters(run: Run, rank: int) -> frozenset[str]:
    """Returns the parameters that a rank's first recorded graph leads to, and "", of other
    nodes."""
    return frozenset(graph_nodes(run, rank)["parameter"])


def _between(sequence: float, numbers: Int64Array, modules: list[str], roots: set[str]) -> str:
    """The module of the operator with that number; of a view, which is not recorded, what the
    operators before and after it have in common.
    """
    if sequence != sequence or not len(numbers):  # none made the node
        return ""
    after = int(np.searchsorted(numbers, sequence))
    if after < len(numbers) and numbers[after] == sequence:
        return modules[after]
    if after in (0, len(numbers)):
        return ""
    one, other = modules[after - 1], modules[after]
    around = zip(one.split("."), other.split("."), strict=False)
    common = ".".join(name for name, _ in takewhile(lambda pair: pair[0] == pair[1], around))
    if common or not one or not other:
        return common
    # The path of the model itself is not a prefix of its children's paths.
    models = roots & {one, other} or roots
    return next(iter(models)) if len(models) == 1 else ""


def _roots(run: Run, rank: int) -> set[str]:
    """Models themselves: they have the name of their class, having none of their own."""
    rows = run.events("module", rank, columns=["path", "class"]).to_pylist()
    return {row["path"] for row in rows if row["path"] == str(row["class"]).rpartition(".")[2]}


def forward_operators(
    run: Run, rank: int, nodes: pd.DataFrame, columns: Sequence[str]
) -> pd.DataFrame:
    """Returns `columns`, start_ns and scope of the operators that ran on the thread of a graph
    before its backward; `nodes` are rows of that graph."""
    thread, before = str(nodes["thread"].iloc[0]), int(nodes["time_ns"].iloc[0])
    ops = run.events("op", rank, thread, [*columns, "start_ns", "scope"], (0, before + 1))
    ops = to_frame(ops.filter(pc.less(ops["start_ns"], before)))
    return ops[ops["scope"] == "function"]


@lru_cache(maxsize=8)
def cut_off(run: Run, rank: int) -> dict[str, str]:
    """Returns module -> cause (of CAUSES), for those that get no gradient from a rank's recorded
    graph."""
    nodes = graph_nodes(run, rank)
    if nodes.empty:
        return {}
    known = samples(run)
    step = int(nodes["step"].iloc[0])
    mine = known[(known["rank"] == rank) & (known["step"] == step)]
    mine = mine[mine["trainable"].astype(bool) & (mine["numel"] > 0)]
    reached = set(nodes["parameter"])
    missing = mine[~mine["parameter"].isin(reached)]
    layers = set(missing["layer"]) - set(mine.loc[mine["parameter"].isin(reached), "layer"])
    forward = forward_operators(run, rank, nodes, ["module", "sequence"])
    ran = forward.groupby("module")["sequence"].count()
    causes = {}
    for layer in dict.fromkeys(missing["layer"]):
        if layer in layers:
            called = str(layer) in ran.index
            recorded = called and int(ran[str(layer)]) > 0
            causes[str(layer)] = (
                "not_reached" if recorded else "no_grad" if called else "not_called"
            )
    return causes
