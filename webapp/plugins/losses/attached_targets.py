"""Finds targets that are computed from the model that they train: `r + gamma * q(s2).max(1)`.

Temporal differences take the second value as a constant. Read from the graph of the first backward:
one side of a difference is a tensor without gradient plus a multiple of what the model returned,
the other side is not, and both lead to the same parameter. So does an advantage, a return less
what the model expects, by which the gradients of a policy are weighted.

The target may be a network of its own, a copy: its norms are those of the other side before the
first step, and the same optimizer holds both.

Equations that outputs are to solve are left out: both sides have the very output, as of an implicit
step u1 = u0 + h f(u1), or a known matrix is multiplied by it, as the kernel of an integral.
"""

from __future__ import annotations

import numpy as np

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import samples
from lanescope.webapp.plugins.losses.loss_graph import (
    SAME_NUMBERS,
    LossGraph,
    LossNode,
    each_graph,
    graph_finding,
)
from lanescope.webapp.runs.run import Run

_LOSSES = ("HuberLoss", "L1Loss", "MseLoss", "SmoothL1Loss")
_ERRORS = ("Abs", "Mul", "Pow")
"""Nodes of what a program makes of a difference."""

_REDUCES = ("Mean", "Sum")
_SUMS = (*_REDUCES, "Add", "Neg", "Stack", "Sub")
_FACTORS = ("Div", "Mul")
_PRODUCTS = ("Bmm", "Mm", "Mv")


@each_graph
def attached_targets(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for loss in _differences(graph):
        sides = [graph.nodes[number] for number in loss.next]
        added = [_bootstrap(graph, one) for one in sides]
        if len(sides) != 2 or sum(one is not None for one in added) != 1:
            continue
        target = next(one for one in added if one is not None)
        if _is_equation(graph, target, sides[added.index(None)]):
            continue
        first, second = (_parameters(graph, one) for one in sides)
        if first & second or _are_copies(run, rank, first, second):
            return _finding(run, rank, graph, loss, target)
    return _advantage(run, rank, graph)


def _advantage(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """A product that the loss adds up, of a policy and a difference between a tensor without
    gradient and what another head returns."""
    for product in added_nodes(graph):
        sides = [graph.nodes[number] for number in product.next]
        if product.name != "Mul" or len(sides) != 2:
            continue
        for side, other in (sides, reversed(sides)):
            error = _numbers(graph, side)
            if error is None or error.name != "Sub" or len(error.next) != 1:
                continue
            value, policy = (_parameters(graph, one) for one in (error, other))
            heads = value - policy and len(policy - value) > 1  # one would be a multiplier
            if heads and "[]" not in error.shapes:
                return _of_policy(run, rank, graph, product, error)
    return None


def added_nodes(graph: LossGraph) -> list[LossNode]:
    """Returns nodes whose elements the loss adds up, with a sign or a factor."""
    return [*graph.below(next(iter(graph.nodes)), passes=_adds_up)]


def _adds_up(node: LossNode) -> bool:
    return node.name in _SUMS or (node.name in _FACTORS and len(node.next) == 1)


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


def _is_equation(graph: LossGraph, target: LossNode, side: LossNode) -> bool:
    """Whether a sum is made of the other side itself, or by a product with a constant matrix."""
    times = _numbers(graph, graph.nodes[target.next[0]])
    made = None if times is None else _numbers(graph, graph.nodes[times.next[0]])
    known = made is not None and made.name in _PRODUCTS and len(made.next) == 1
    return known or any(one.number == side.number for one in graph.below(target.number))


def _are_copies(run: Run, rank: int, first: set[str], second: set[str]) -> bool:
    """Whether one optimizer holds two networks that were equal before its first step."""
    known = samples(run)
    known = known[(known["rank"] == rank) & (known["call"] == 0) & (known["optimizer"] >= 0)]
    sides = [known[known["parameter"].isin(one)] for one in (first, second)]
    if {*map(len, sides)} != {len(first)} or len(
        {*sides[0]["optimizer"], *sides[1]["optimizer"]}
    ) > 1:
        return False
    sizes, others = (one.sort_values(["numel", "norm"])[["numel", "norm"]] for one in sides)
    return len(first) > 0 and bool(np.array_equal(sizes.to_numpy(), others.to_numpy()))


def _numbers(graph: LossGraph, node: LossNode) -> LossNode | None:
    """The node that made the numbers of a node."""
    return graph.source(node) if SAME_NUMBERS.fullmatch(node.name) else node


def _parameters(graph: LossGraph, node: LossNode) -> set[str]:
    """Names of parameters that a node leads to."""
    return {one.parameter for one in graph.below(node.number) if one.parameter}


def _of_policy(run: Run, rank: int, graph: LossGraph, loss: LossNode, error: LossNode) -> Finding:
    return graph_finding(
        run,
        rank,
        graph,
        title=f"Gradients flow through the advantage{error.at}, by which the loss{loss.at} weighs "
        "the policy: what estimates the value also learns to make actions look good. Use "
        "advantage.detach() there.",
        where=loss.where or error.where,
        evidence={"cause": "attached_advantage", "made_at": error.where},
    )


def _finding(run: Run, rank: int, graph: LossGraph, loss: LossNode, target: LossNode) -> Finding:
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The target{target.at} is computed from the parameters that the loss{loss.at} "
        "trains, and gradients flow through it: the model also learns to move the target. Compute "
        "it within torch.no_grad(), or detach() it.",
        where=target.where or loss.where,
        evidence={"cause": "attached_target", "loss_at": loss.where},
    )
