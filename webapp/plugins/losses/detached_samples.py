"""Finds samples that a model computes with, and that pass no gradient to their distribution.

`Normal(mu, sigma).sample()` and `torch.normal(mu, sigma)` are for actions and noise. In an
autoencoder, the decoder then trains and the encoder learns from the rest of the loss alone. Found
where mean and deviation are in the graph of the first backward, and layers alone read the sample: a
policy's gradient compares it with the mean.
"""

from __future__ import annotations

from collections import defaultdict

from lanescope.webapp.analysis.arrow_columns import stack_of
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import Operator, forward_rows, outermost, touch
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    each_graph,
    graph_finding,
)
from lanescope.webapp.runs.run import Run

_DRAW, _JOIN = "aten::normal", "aten::cat"
_LAYERS = frozenset(
    f"aten::{name}"
    for name in (
        "addmm",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "linear",
        "matmul",
        "mm",
    )
)


@each_graph
def cut_samples(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_gradient`, at most one per rank. Raises NotApplicable."""
    nodes = graph_nodes(run, rank)
    rows = forward_rows(run, rank, nodes)
    ops = outermost(rows)
    if not any(op.name == _DRAW for op in ops):
        return None
    touch(run, rank, nodes, ops)
    in_graph = {int(one) for one in nodes["sequence"].dropna()}
    draw = _cut_draw(ops, in_graph)
    if draw is None:
        return None
    where = own_place(run, rank, stack_of(rows.iloc[draw.row]))
    return graph_finding(
        run,
        rank,
        graph,
        kind="wrong_gradient",
        title=f"The sample{at_place(where)} passes no gradient to its mean and "
        "deviation, and layers that the loss depends on compute with it: what makes the mean "
        "learns from the other terms of the loss alone. Use rsample() instead of sample(), or "
        "mean + deviation * torch.randn_like(deviation) instead of torch.normal().",
        where=where,
        evidence={"cause": "cut_sample"},
    )


def _cut_draw(ops: list[Operator], in_graph: set[int]) -> Operator | None:
    """The first draw from a distribution in the graph whose numbers layers of the graph read."""
    writer = dict[int, int]()
    readers = defaultdict[int, list[int]](list)  # number of an operator -> who reads its result
    draws = []
    for number, op in enumerate(ops):
        sources = {writer[one] for one in op.reads - op.born if one in writer}
        for source in sources:
            readers[source].append(number)
        if op.name == _DRAW and any(ops[one].made & in_graph for one in sources):
            draws.append(number)
        writer |= dict.fromkeys(op.writes, number)
    for draw in draws:
        read_by = list(readers[draw])
        for number in read_by:  # grows
            if ops[number].name == _JOIN:
                read_by += readers[number]
        found = [ops[number] for number in read_by if ops[number].name != _JOIN]
        if found and all(op.name in _LAYERS and op.made & in_graph for op in found):
            return ops[draw]
    return None
