"""Finds losses that take a softmax or a logarithm of results that have one already, or of none.

Read from the graph of the first backward: which node made the numbers that a loss gets. Views,
indexing and casts between the two do not count.
"""

from __future__ import annotations

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.plugins.losses.loss_graph import LossGraph, LossNode, loss_graphs
from lanescope.webapp.runs.run import Run

_LAYERS = ("Addmm", "Addbmm", "Bmm", "Convolution", "Linear", "MkldnnConvolution", "Mm")
"""Nodes of layers, whose numbers have no bounds."""

_LOGITS = "Give it the logits: leave that {function} out in training"
_LOGARITHMS = "Give it the result of log_softmax, or use cross_entropy"

_WRONG = {
    ("LogSoftmax", "Softmax"): ("probabilities, and takes a softmax of them again", _LOGITS),
    ("NllLoss", "Sigmoid"): ("probabilities, and takes a softmax of them", _LOGITS),
    ("BinaryCrossEntropyWithLogits", "Sigmoid"): (
        "probabilities, and takes a sigmoid of them again",
        _LOGITS,
    ),
    ("BinaryCrossEntropyWithLogits", "Softmax"): (
        "probabilities, and takes a sigmoid of them",
        _LOGITS,
    ),
    ("NllLoss", "Softmax"): (
        "probabilities in place of their logarithms, which is not a cross-entropy",
        _LOGARITHMS,
    ),
    **{
        ("NllLoss", layer): (
            "the output of a layer in place of logarithms of probabilities, so its value has no "
            "lower bound",
            _LOGARITHMS,
        )
        for layer in _LAYERS
    },
}
"""(loss, what made its input) -> what the loss gets, and what to do."""

_WORDS = {
    "LogSoftmax": "log_softmax",
    "NllLoss": "nll_loss",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
}


def loss_inputs(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    found = []
    for rank, graph in loss_graphs(run).items():
        for node in graph.nodes.values():
            wrong = _wrong(graph, node)
            if wrong is not None:
                found.append(_finding(run, rank, graph, *wrong))
                break
    return found


def _wrong(graph: LossGraph, loss: LossNode) -> tuple[LossNode, str, LossNode] | None:
    """The loss, its function, and the node that made its input."""
    kind, source = _kind(loss), graph.source(loss)
    if kind not in _WORDS or source is None:
        return None
    function = _WORDS[kind]
    if kind == "NllLoss" and source.name == "LogSoftmax":
        source, function = graph.source(source), "cross_entropy"
    known = source is not None and (kind, source.name) in _WRONG
    if function == "cross_entropy":
        known = source is not None and source.name in ("Softmax", "Sigmoid")
    return (loss, function, source) if source is not None and known else None


def _kind(node: LossNode) -> str:
    return "NllLoss" if node.name.startswith("NllLoss") else node.name


def _finding(
    run: Run, rank: int, graph: LossGraph, loss: LossNode, function: str, source: LossNode
) -> Finding:
    again = function == "cross_entropy" and source.name == "Softmax"
    gets, advice = _WRONG["LogSoftmax" if again else _kind(loss), source.name]
    made = source.name.lower()
    at = f" at {loss.where}" if loss.where else ""
    by = f" ({made} at {source.where})" if source.where else f" ({made})"
    return Finding(
        kind="wrong_loss",
        severity="warning",
        confidence="likely",
        title=f"{function}{at} gets {gets}{by}. {advice.format(function=made)}.",
        rank=rank,
        ranks=(rank,),
        step=graph.step,
        time_ns=graph.time_ns,
        where=loss.where or source.where,
        evidence={"cause": "input", "loss": function, "input": made, "made_at": source.where},
        link=timeline_address(graph.time_ns, graph.time_ns + 1, run.duration_ns),
    )
