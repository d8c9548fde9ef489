"""Finds losses that compare each output with each target: [N, 1] and [N] are broadcast to [N, N].
Or that weigh each output by each weight, as log-probabilities by advantages.

Read from the graph of the first backward. An operator of a loss had inputs of these shapes, one of
them needs no gradient (the targets), and no operator of the program put the axis of length one
there: a layer did, whose output it is. A parameter has the shape that the program gave it.
"""

from __future__ import annotations

from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    graph_finding,
    input_shapes,
    loss_graph,
    need_graphs,
)
from lanescope.webapp.runs.run import Run

_COMPARES = ("HuberLoss", "MseLoss", "Rsub", "SmoothL1Loss", "Sub")
"""Nodes of operators that compare outputs with targets."""

_WEIGHS = "Mul"
_BEHIND_WEIGHTS = ("Div", "Minimum", _WEIGHS, "Neg", "View")
"""Nodes between a product with weights and the mean or sum over it."""

_AXIS = ("AsStrided", "Expand", "Index", "Permute", "Select", "Slice", "Split", "Unsqueeze", "View")
"""Nodes of views by which a program puts an axis where it wants one."""

_ENDS = ("Mean", "Sum")


@found_per_rank(need_graphs)
def loss_shapes(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    graph = loss_graph(run, rank)
    if graph is None:
        return None
    for node in graph.nodes.values():
        if (rows := _broadcast(graph, node)) and _is_reduced(graph, node):
            return _finding(run, rank, graph, node, rows)
    return None


def _broadcast(graph: LossGraph, node: LossNode) -> int:
    """N of an operator that compares outputs of shape [N, 1] with targets of [N]; 0: it does
    not."""
    if node.name not in (*_COMPARES, _WEIGHS) or len(node.next) != 1:
        return 0
    source = graph.nodes[node.next[0]]
    first, second = (*input_shapes(node), [], [])[:2]
    if node.name.endswith("Loss"):  # torch expands both before it compares them
        square = first == second and len(first) == 2 and first[0] == first[1]
        return first[0] if square and source.name == "Expand" else 0
    if source.name.startswith(_AXIS) or _is_parameter(graph, source):
        return 0
    flat = next((one for one in (first, second) if len(one) == 1 and one[0] > 1), None)
    return flat[0] if flat and [flat[0], 1] in (first, second) else 0


def _is_parameter(graph: LossGraph, node: LossNode) -> bool:
    """Returns whether a node hands on a parameter, through operators of one tensor at most."""
    end = graph.down(
        node, lambda one: len(one.next) == 1 and sum(map(bool, input_shapes(one))) <= 1
    )
    return not end.next and end.name == "AccumulateGrad"


def _is_reduced(graph: LossGraph, node: LossNode) -> bool:
    """Whether the comparison ends in one number that is the loss, by a mean or a sum."""
    if node.name.endswith("Loss"):
        return True
    above: dict[int | None, int] = {
        one: number for number, own in graph.nodes.items() for one in own.next
    }
    number: int | None = node.number
    for _ in graph.nodes:
        number = above.get(number)
        if number is None:
            break
        if graph.nodes[number].name in _ENDS:
            return True
        if node.name == _WEIGHS and graph.nodes[number].name not in _BEHIND_WEIGHTS:
            return False
    return False


def _finding(run: Run, rank: int, graph: LossGraph, node: LossNode, rows: int) -> Finding:
    does, what, so, other = (
        ("weighs", "weights", "each of them gets the mean of the weights", "weight")
        if node.name == _WEIGHS
        else ("compares", "targets", "the best output is the mean of the targets", "target")
    )
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The loss{node.at} {does} each of {rows} outputs with all {rows} {what}: their "
        f"shapes [{rows}, 1] and [{rows}] are broadcast to [{rows}, {rows}], so {so}. Give both "
        f"the same shape: output.squeeze(1), or {other}[:, None].",
        where=node.where,
        evidence={"cause": "broadcast", "op": node.op, "shapes": node.shapes},
    )
