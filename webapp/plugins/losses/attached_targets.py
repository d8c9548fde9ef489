"""Finds targets that are computed from the model that they train: `r + gamma * q(s2).max(1)`.

Temporal differences take the second value as a constant. Read from the graph of the first backward:
one side of a difference is a tensor without gradient plus a multiple of what the model returned,
the other side is not, and both lead to the same parameter.
"""

from __future__ import annotations

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.losses.loss_graph import (
    SAME_NUMBERS,
    LossGraph,
    LossNode,
    graph_finding,
    loss_graph,
    of_graphs,
)
from lanescope.webapp.runs.run import Run

_LOSSES = ("HuberLoss", "L1Loss", "MseLoss", "SmoothL1Loss")
_ERRORS = ("Abs", "Mul", "Pow")
"""Nodes of what a program makes of a difference."""

_REDUCES = ("Mean", "Sum")


def attached_targets(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return of_graphs(run, _attached)


def _attached(run: Run, rank: int) -> Finding | None:
    graph = loss_graph(run, rank)
    if graph is None:
        return None
    for loss in _differences(graph):
        sides = [graph.nodes[number] for number in loss.next]
        added = [_bootstrap(graph, one) for one in sides]
        if len(sides) != 2 or sum(one is not None for one in added) != 1:
            continue
        target = next(one for one in added if one is not None)
        if _parameters(graph, sides[0]) & _parameters(graph, sides[1]):
            return _finding(run, rank, graph, loss, target)
    return None


def _differences(graph: LossGraph) -> list[LossNode]:
    """Losses of two sides, and differences whose squares are averaged or added."""
    found = []
    for node in graph.nodes.values():
        if node.name in _LOSSES:
            found.append(node)
        elif node.name in _REDUCES and node.next:
            error = graph.nodes[node.next[0]]
            if error.name in _ERRORS and error.next:
                found += [one for one in (graph.nodes[error.next[0]],) if one.name == "Sub"]
    return found


def _bootstrap(graph: LossGraph, node: LossNode) -> LossNode | None:
    """The sum with a tensor without gradient that a side is, of a multiple; None: it is not."""
    added = _numbers(graph, node)
    if added is None or added.name != "Add" or len(added.next) != 1:
        return None
    if "[]" in added.shapes:  # a number is added
        return None
    times = _numbers(graph, graph.nodes[added.next[0]])
    return added if times is not None and times.name == "Mul" and len(times.next) == 1 else None


def _numbers(graph: LossGraph, node: LossNode) -> LossNode | None:
    """The node that made the numbers of a node."""
    return graph.source(node) if SAME_NUMBERS.fullmatch(node.name) else node


def _parameters(graph: LossGraph, node: LossNode) -> set[str]:
    """Names of parameters that a node leads to."""
    pending, seen = [node.number], {node.number}
    while pending:
        for number in graph.nodes[pending.pop()].next:
            if number not in seen:
                seen.add(number)
                pending.append(number)
    return {name for number in seen if (name := graph.nodes[number].parameter)}


def _finding(run: Run, rank: int, graph: LossGraph, loss: LossNode, target: LossNode) -> Finding:
    made, at = (f" at {one.where}" if one.where else "" for one in (target, loss))
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The target{made} is computed from the parameters that the loss{at} trains, and "
        "gradients flow through it: the model also learns to move the target. Compute it within "
        "torch.no_grad(), or detach() it.",
        where=target.where or loss.where,
        evidence={"cause": "attached_target", "loss_at": loss.where},
    )
