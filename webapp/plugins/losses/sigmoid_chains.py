"""Finds long chains of sigmoids, with nothing but linear layers between.

A sigmoid passes at most a quarter of its gradient: of `_MIN_SIGMOIDS` in a row less than a
thousandth is left.
"""

from __future__ import annotations

import re

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_graph,
    graph_finding,
    of_nodes,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LINEAR, _SIGMOID = ("Addmm", "Mm"), "Sigmoid"
_OF_WEIGHTS = ("AccumulateGrad", "T")
_PASSES = re.compile(r"Addmm|Div|Mm|Mul|NativeDropout|ReshapeAlias|Sigmoid|ToCopy|UnsafeView|View")
"""Nodes of a chain: besides layers, those that hand on rows as they are, and dropout."""

_MIN_SIGMOIDS = 5


@of_nodes("^Sigmoid", "sigmoid")
@each_graph
def sigmoid_chains(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `vanishing_gradient`, at most one per rank. Raises NotApplicable."""
    chains = (_chain(graph, one) for one in graph.nodes.values() if one.name == _SIGMOID)
    longest = max(chains, key=len, default=[])
    if len(longest) < _MIN_SIGMOIDS:
        return None
    return graph_finding(
        run,
        rank,
        graph,
        kind="vanishing_gradient",
        title=f"{units.count(len(longest))} layers in a row end in a sigmoid{longest[0].at}: each "
        "passes at most a quarter of its gradient on, so hardly any reaches the first of them. Use "
        "relu or gelu between layers, or normalise before each.",
        where=longest[0].where,
        evidence={"cause": "sigmoids", "layers": [one.module for one in longest]},
    )


def _chain(graph: LossGraph, last: LossNode) -> list[LossNode]:
    """A sigmoid and those that lead to it."""
    found, at = [last], last
    for _ in graph.nodes:  # a damaged file may hold a circle
        made = [graph.nodes[one] for one in at.next]
        if at.name in _LINEAR:
            made = [one for one in made if one.name not in _OF_WEIGHTS]
        if len(made) != 1 or not _PASSES.fullmatch(made[0].name):
            break
        at = made[0]
        if at.name == _SIGMOID:
            found.append(at)
    return found
