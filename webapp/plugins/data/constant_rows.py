"""Finds layers within a model that get the same data for all samples, and at all sampled steps.

A number of each sample was lost on its way to the layer: a time step of a diffusion that was
divided with `//`, a share that was cast to a whole number, the wrong key of a batch.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import DATA_ROWS
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_graph,
    graph_finding,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_GRAPHS = 4


@each_graph
def constant_rows(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `repeated_data`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=DATA_ROWS)
    by_node = rows.groupby("name", observed=True)["value"]
    facts = pd.DataFrame({"count": by_node.size(), "one": by_node.nunique(), "of": by_node.max()})
    facts = facts[facts["count"] >= _MIN_GRAPHS]
    if not (facts["of"] == 0).any():
        return None  # one sample may be repeated on purpose
    nodes = {one: graph.nodes.get(int(one)) for one in facts.index}
    constant = {one: bool(own["one"] == 1 and own["of"]) for one, own in facts.iterrows()}
    varied = {node.module for one, node in nodes.items() if node and not constant[one]}
    for one, node in nodes.items():
        if node is not None and node.module not in varied:
            return _finding(run, rank, graph, node, int(facts.loc[one, "count"]))
    return None


def _finding(run: Run, rank: int, graph: LossGraph, node: LossNode, steps: int) -> Finding:
    return graph_finding(
        run,
        rank,
        graph,
        kind="repeated_data",
        title=f"{node.module or 'A layer'}{node.at} gets the same values for all samples, at all "
        f"{units.count(steps)} steps that were looked at, and other layers get data that vary: "
        "what distinguishes the samples was lost before it. Look for //, for a cast to whole "
        "numbers (.long(), .int()), or for a wrong index.",
        where=node.where,
        evidence={"cause": "constant_rows", "steps": steps, "layer": node.module},
    )
