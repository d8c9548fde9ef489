"""Finds contrastive losses in which each sample competes with itself: the diagonal is not masked.

`cross_entropy(z @ z.T / t, partners)` gives the greatest score to the pair of a sample with itself,
which is never the target; or it is the target of all, and no two samples come closer. Read from the
graph of the first backward: the scores are the product of a matrix with itself, times a number, and
the diagonal has probability.
"""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import SELF_PAIRS
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.losses.loss_graph import (
    LossFact,
    LossGraph,
    LossNode,
    each_rank_of_graphs,
    loss_facts,
    of_nodes,
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
_PARTS = re.compile(r"(Unsafe)?Split\w*|Unbind\w*|\w*(Gru|Lstm|Rnn)\w*")
"""Nodes with several results: two that lead to one of them may be of different tensors."""


@of_nodes("LogSoftmax", "log_softmax")
@each_rank_of_graphs
def self_pairs(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, SELF_PAIRS):
        if _is_square(fact.graph, fact.node):
            return _finding(run, rank, fact)
    return None


def _is_square(graph: LossGraph, loss: LossNode) -> bool:
    """Whether the scores of a loss are a matrix times itself, and nothing else."""
    softmax = graph.nodes[loss.next[0]] if loss.next else loss
    if softmax.name != "LogSoftmax":
        return False
    product = _handed_on(graph, softmax)
    if product.name not in _PRODUCTS or len(product.next) != 2:
        return False
    first, second = (_origin(graph, graph.nodes[one]) for one in product.next)
    return first.number == second.number and not _PARTS.fullmatch(first.name)


def _handed_on(graph: LossGraph, node: LossNode) -> LossNode:
    """The node that made the scores, but for a factor."""
    if len(node.next) != 1:
        return node
    first = graph.nodes[node.next[0]]
    return graph.down(first, lambda one: one.name in _SCALES + _SAME and len(one.next) == 1)


def _origin(graph: LossGraph, node: LossNode) -> LossNode:
    return graph.down(node, lambda one: one.name in _SAME and len(one.next) == 1)


def _finding(run: Run, rank: int, fact: LossFact) -> Finding:
    share = float(fact.values.iloc[0])
    if share > 0:
        why = (
            " as well: its scores are a matrix times itself, the targets are off the diagonal, and "
            f"the diagonal gets {share:.0%} of the probability at first. Hide it before the "
            'softmax: scores.fill_diagonal_(float("-inf")).'
        )
    else:  # all targets are on the diagonal, see SELF_PAIRS
        why = (
            ": its scores are a matrix times itself, and the targets are the diagonal, so each "
            "sample is its own partner and no two views come closer. Multiply the one view by the "
            "other (first @ second.T), or hide the diagonal and take the other view as target."
        )
    return fact.finding(
        run,
        rank,
        title=f"The contrastive loss{fact.node.at} compares each sample with itself{why}",
        evidence={"cause": "self_pairs", "share": abs(share)},
    )
