"""Finds linear layers with no function between them, and long chains of sigmoids.

Two linear layers in a row are one: what the second adds is only a product of matrices, unless the
first makes its input narrower, as a factorisation or a bottleneck does. Looked at from the data on,
where nothing else reads what the first returns. A sigmoid passes at most a quarter of its gradient:
of `_MIN_SIGMOIDS` in a row, with nothing but linear layers between, less than a thousandth is left.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_graph,
    graph_finding,
    input_shapes,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LINEAR, _SIGMOID = ("Addmm", "Mm"), "Sigmoid"
_SCALES = ("Div", "Mul")  # by a number or by the mask of dropout, where one input has a gradient
_KEEPS = re.compile(r"(AccumulateGrad|T)|(NativeDropout|ReshapeAlias|ToCopy|UnsafeView|View)")
"""Nodes of a weight or a bias, and those that hand on rows as they are."""

_MIN_SIGMOIDS = 5


@each_graph
def layer_chains(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `dead_parameter` or `vanishing_gradient`, at most one per rank.
    Raises NotApplicable."""
    pair = next(_without_function(graph), None)
    if pair is not None:
        first, second = pair
        return graph_finding(
            run,
            rank,
            graph,
            kind="dead_parameter",
            title=f"The linear layer{second.at} gets what the linear layer{at_place(first.where)} "
            "returns, with no function between them: both together can do no more than a single "
            "linear layer. Put an activation between, such as relu.",
            where=second.where,
            evidence={"cause": "no_activation", "layers": [first.module, second.module]},
        )
    chains = (_sigmoids(graph, one) for one in graph.nodes.values() if one.name == _SIGMOID)
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


def _without_function(graph: LossGraph) -> Iterator[tuple[LossNode, LossNode]]:
    """Yields pairs of linear layers in a row: the first gets data and does not make it narrower."""
    readers = Counter(number for node in graph.nodes.values() for number in node.next)
    for second in graph.nodes.values():
        first = _input(graph, second) if second.name in _LINEAR else None
        while first is not None and _KEEPS.fullmatch(first.name) and readers[first.number] == 1:
            first = _input(graph, first)
        if first is None or first.name not in _LINEAR or readers[first.number] != 1:
            continue
        (rows, *given), (others, *wide) = _lengths(first), _lengths(second)
        same = rows == others and given and wide and given[1] == wide[0]
        if same and _input(graph, first) is None and given[1] >= min(given[0], wide[1]):
            yield first, second


def _sigmoids(graph: LossGraph, node: LossNode) -> list[LossNode]:
    """A sigmoid and those that lead to it, with linear layers between."""
    found, at = [node], node
    for _ in graph.nodes:
        below = _input(graph, at)
        if below is None or not (below.name in (*_LINEAR, _SIGMOID) or _KEEPS.match(below.name)):
            break
        at = below
        if at.name == _SIGMOID:
            found.append(at)
    return found


def _input(graph: LossGraph, node: LossNode) -> LossNode | None:
    """The node that made what a layer gets; None: data, or more than one such node."""
    made = [graph.nodes[one] for one in node.next]
    if node.name in _LINEAR:
        made = [one for one in made if not (match := _KEEPS.fullmatch(one.name)) or not match[1]]
    while len(made) == 1 and made[0].name in _SCALES and len(made[0].next) == 1:
        made = [graph.nodes[made[0].next[0]]]
    return made[0] if len(made) == 1 else None


def _lengths(node: LossNode) -> list[int]:
    """Rows, inputs and outputs of a linear layer; [0]: not known."""
    shapes = [one for one in input_shapes(node) if len(one) == 2]
    return [*shapes[-2], shapes[-1][1]] if len(shapes) >= 2 else [0]
