"""Finds functional tanh and sigmoid that are saturated from the first step on.

The mean of their derivative is next to zero in each graph that was looked at, from that of step 0,
and a layer comes after them. Modules of tanh and sigmoid are judged by what they return
(`silent_units`).
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import MEAN_SLOPE
from lanescope.webapp.analysis.arrow_columns import to_frame
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

_SLOPES = {"Tanh": 0.03, "Sigmoid": 0.003}
"""Mean derivative below which a function is saturated; at its middle it is 1, and 0.25."""

_MIN_SAMPLES = 4
_LAYERS = ("Addmm", "Addbmm", "Baddbmm", "Bmm", "Convolution", "Linear", "MkldnnConvolution", "Mm")


@each_graph
def saturated(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=MEAN_SLOPE)
    if rows.empty or not (rows["value"] < max(_SLOPES.values())).any():
        return None
    known = to_frame(run.events("module", rank))
    kinds = known["class"].astype("str").str.rsplit(".", n=1).str[-1]
    modules = set(known.loc[kinds.isin(_SLOPES), "path"].astype("str"))
    groups = rows.groupby("name", observed=True)["value"]
    highest = groups.max()[groups.size() >= _MIN_SAMPLES]
    for number in sorted(map(int, highest.index)):
        node, slope = graph.nodes.get(number), float(highest[str(number)])
        if node is None or node.module in modules or slope >= _SLOPES.get(node.name, 0.0):
            continue
        if number in _before_layers(graph):
            return _finding(run, rank, graph, node, slope)
    return None


def _before_layers(graph: LossGraph) -> set[int]:
    """Numbers of nodes whose results a layer gets."""
    layers = (node for node in graph.nodes.values() if node.name in _LAYERS)
    return {one.number for one in graph.below(*(number for own in layers for number in own.next))}


def _finding(run: Run, rank: int, graph: LossGraph, node: LossNode, slope: float) -> Finding:
    return graph_finding(
        run,
        rank,
        graph,
        kind="dead_parameter",
        title=f"{node.name.lower()}{node.at} is saturated from the first step on: what it gets is "
        f"far from zero, and its slope is {units.share(slope)} on average, so almost no gradient "
        "passes to the layers before it. Normalise the input (pixels to 0 to 1), and check the "
        "scale of the weights.",
        where=node.where,
        evidence={"cause": "saturated", "layers": [node.module], "slope": slope},
    )
