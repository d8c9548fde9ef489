"""Finds contrastive losses in which each sample competes with itself: the diagonal is not masked.

`cross_entropy(z @ z.T / t, partners)` gives the greatest score to the pair of a sample with itself,
which is never the target. Read from the graph of the first backward: the scores are the product of
a matrix with itself, times a number, and the diagonal has probability.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import SELF_PAIRS
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_rank_of_graphs,
    graph_finding,
    loss_graph,
)
from lanescope.webapp.runs.run import Run

_PRODUCTS = ("Bmm", "Mm")
_SCALES = ("Div", "Mul")
_SAME = (
    "Expand",
    "Permute",
    "ReshapeAlias",
    "Squeeze",
    "T",
    "Transpose",
    "UnsafeView",
    "Unsqueeze",
    "View",
)


@each_rank_of_graphs
def self_pairs(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=SELF_PAIRS)
    graph = None if rows.empty else loss_graph(run, rank)
    if graph is None:
        return None
    for name, share in zip(rows["name"], rows["value"], strict=True):
        loss = graph.nodes.get(int(name))
        if loss is not None and _is_square(graph, loss):
            return _finding(run, rank, graph, loss, float(share))
    return None


def _is_square(graph: LossGraph, loss: LossNode) -> bool:
    """Whether the scores of a loss are a matrix times itself, and nothing else."""
    softmax = graph.nodes[loss.next[0]] if loss.next else loss
    if softmax.name != "LogSoftmax":
        return False
    product = _handed_on(graph, softmax)
    if product.name not in _PRODUCTS or len(product.next) != 2:
        return False
    first, second = (graph.nodes[one] for one in product.next)
    return _origin(graph, first) == _origin(graph, second)


def _handed_on(graph: LossGraph, node: LossNode) -> LossNode:
    """The node that made the scores, but for a factor."""
    if len(node.next) != 1:
        return node
    first = graph.nodes[node.next[0]]
    return graph.down(first, lambda one: one.name in _SCALES + _SAME and len(one.next) == 1)


def _origin(graph: LossGraph, node: LossNode) -> int:
    return graph.down(node, lambda one: one.name in _SAME and len(one.next) == 1).number


def _finding(run: Run, rank: int, graph: LossGraph, loss: LossNode, share: float) -> Finding:
    return graph_finding(
        run,
        rank,
        graph,
        title=f"The contrastive loss{loss.at} compares each sample with itself as well: its scores "
        "are a matrix times itself, the targets are off the diagonal, and the diagonal gets "
        f"{share:.0%} of the probability at first. Hide it before the softmax: "
        'scores.fill_diagonal_(float("-inf")).',
        where=loss.where,
        evidence={"cause": "self_pairs", "share": share},
    )
