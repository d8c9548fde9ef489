"""Finds an nll_loss of logarithms of a softmax over another dimension than that of the classes.

The classes of nll_loss are dimension 1. Read from the graph of the first backward, where nothing
stands between the two. A square [N, N] is left out: there it may be meant (contrastive losses).
"""

from __future__ import annotations

import re

from lanescope.collector.format.names import SOFTMAX_DIM
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import LossGraph, LossNode, loss_graph, of_graphs
from lanescope.webapp.runs.run import Run

_CLASSES = 1
_SHAPE = re.compile(r"\[([^\]]*)\]")


def softmax_dims(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return of_graphs(run, _over_another)


def _over_another(run: Run, rank: int) -> Finding | None:
    graph = loss_graph(run, rank)
    if graph is None:
        return None
    rows = logged(run, rank, prefix=SOFTMAX_DIM)
    dims = {int(name): int(value) for name, value in zip(rows["name"], rows["value"], strict=True)}
    for loss in graph.nodes.values():
        softmax = _softmax_of(graph, loss) if loss.name.startswith("NllLoss") else None
        sizes = _SHAPE.findall(softmax.shapes)[:1] if softmax else []
        shape = [int(one) for one in sizes[0].split(",") if one.strip()] if sizes else []
        if softmax is None or softmax.number not in dims or len(shape) < 2:
            continue
        dim = dims[softmax.number] % len(shape)
        if dim != _CLASSES and shape[dim] != shape[_CLASSES]:
            return _finding(run, rank, graph, loss, softmax, dim, shape)
    return None


def _softmax_of(graph: LossGraph, loss: LossNode) -> LossNode | None:
    """The softmax or log_softmax whose result, or its logarithm, a loss gets as it is."""
    node = graph.nodes[loss.next[0]] if loss.next else None
    if node is not None and node.name == "Log" and node.next:
        node = graph.nodes[node.next[0]]
        return node if node.name == "Softmax" else None
    return node if node is not None and node.name == "LogSoftmax" else None


def _finding(
    run: Run,
    rank: int,
    graph: LossGraph,
    loss: LossNode,
    softmax: LossNode,
    dim: int,
    shape: list[int],
) -> Finding:
    at, made = (f" at {one.where}" if one.where else "" for one in (loss, softmax))
    what = " (over the samples of the batch)" if dim == 0 else ""
    return Finding(
        kind="wrong_loss",
        severity="warning",
        title=f"nll_loss{at} gets a softmax{made} over dimension {dim} of {shape}{what}. The "
        f"{shape[_CLASSES]} classes are dimension {_CLASSES}, and their probabilities do not add "
        "up to 1: pass dim=1 to the softmax, or use cross_entropy on the logits.",
        rank=rank,
        ranks=(rank,),
        step=graph.step,
        time_ns=graph.time_ns,
        where=softmax.where or loss.where,
        evidence={"cause": "dimension", "dimension": dim, "shape": shape, "loss_at": loss.where},
        link=timeline_address(graph.time_ns, graph.time_ns + 1, run.duration_ns),
    )
