"""Finds losses that cannot become small, or have no least value, whatever the model learns.

The recorder looks at the numbers of the graph at the steps 0, 1, 2, 4, 8, ...: targets that the
last function of the model cannot return, texts that CTC cannot align, similarities of unit vectors
without a temperature, pairs of two views that are the same, ratios of a policy to itself, and
divergences with the wrong sign or weight.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from lanescope.collector.format.loop_names import (
    FLAT_SCORES,
    LONG_TEXTS,
    MAXIMIZES,
    NEGATIVE_DIVERGENCE,
    POLICY_RATIO,
    SAME_VIEWS,
    SUMMED_DIVERGENCE,
    UNREACHED_TARGETS,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    each_graph,
    graph_finding,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_GRAPHS = 3
_MIN_TARGETS, _MIN_TEXTS = 0.1, 0.1
_FLAT = 0.75
"""The least loss, as a share of that of equal scores."""

_RETURNS = {
    "Relu": "below 0, and relu{made} returns none",
    "Sigmoid": "outside of 0 to 1, and sigmoid{made} returns nothing else",
    "Softmax": "outside of 0 to 1, and softmax{made} returns nothing else",
    "Tanh": "outside of -1 to 1, and tanh{made} returns nothing else",
}

_Said = Callable[[LossGraph, list[str], "pd.Series[float]"], str | None]
"""(graph, what follows the prefix of a series, its numbers) -> what to say; None: nothing"""


def unreached_targets(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return _findings(run, UNREACHED_TARGETS, "unreached_targets", _unreached)


def long_texts(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return _findings(run, LONG_TEXTS, "long_texts", _long)


def flat_scores(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return _findings(run, FLAT_SCORES, "flat_scores", _flat)


def same_views(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return _findings(run, SAME_VIEWS, "same_views", _views)


def constant_ratios(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return _findings(run, POLICY_RATIO, "constant_ratio", _ratio)


def negative_divergences(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if len(logged(run, None, MAXIMIZES)):
        return []
    return _findings(run, NEGATIVE_DIVERGENCE, "negative_divergence", _negative)


def summed_divergences(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    return _findings(run, SUMMED_DIVERGENCE, "summed_divergence", _summed)


def _findings(run: Run, prefix: str, cause: str, says: _Said) -> list[Finding]:
    @each_graph
    def of_graph(run: Run, rank: int, graph: LossGraph) -> Finding | None:
        rows = logged(run, rank, prefix=prefix)
        for name, own in rows.groupby("name", sort=False, observed=True):
            facts = str(name).split("/")
            node = graph.nodes.get(int(facts[0]))
            said = None if node is None else says(graph, facts, own["value"])
            if node is not None and said is not None:
                evidence = {"cause": cause, "graphs": len(own)}
                return graph_finding(
                    run, rank, graph, title=said, where=node.where, evidence=evidence
                )
        return None

    return of_graph(run)


def _at(graph: LossGraph, number: str) -> str:
    node = graph.nodes.get(int(number))
    return f" at {node.where}" if node is not None and node.where else ""


def _unreached(graph: LossGraph, facts: list[str], shares: pd.Series[float]) -> str | None:
    node = graph.nodes.get(int(facts[1]))
    returns = _RETURNS.get(node.name) if node is not None else None
    if returns is None or len(shares) < _MIN_GRAPHS or shares.min() < _MIN_TARGETS:
        return None
    return (
        f"{units.share(shares.mean())} of the targets of the loss{_at(graph, facts[0])} are "
        f"{returns.format(made=_at(graph, facts[1]))}: the model cannot come near them. Leave that "
        "function out of the last layer, or scale the targets."
    )


def _long(graph: LossGraph, facts: list[str], shares: pd.Series[float]) -> str | None:
    if len(shares) < _MIN_GRAPHS or shares.mean() < _MIN_TEXTS:
        return None
    return (
        f"{units.share(shares.mean())} of the samples of the CTC loss{_at(graph, facts[0])} have "
        "more labels than positions: no path gives these labels, so the loss is infinite, or 0 "
        "with zero_infinity=True, and the samples teach nothing. Reduce the strides of the "
        "model, or leave such samples out; check input_lengths and target_lengths."
    )


def _flat(graph: LossGraph, facts: list[str], shares: pd.Series[float]) -> str | None:
    if len(shares) < _MIN_GRAPHS or shares.min() < _FLAT:
        return None
    return (
        f"The loss{_at(graph, facts[0])} compares unit vectors, and multiplies their products, "
        f"which are 1 at most, by {facts[2]}: the softmax over {facts[1]} of them stays flat, and "
        f"{units.share(shares.min())} of the first loss remain in the best case. Divide the "
        "products by the temperature (0.07) instead of multiplying by it, or use a scale of 10 to "
        "100."
    )


def _views(graph: LossGraph, facts: list[str], ones: pd.Series[float]) -> str | None:
    if len(ones) < _MIN_GRAPHS or (ones < 1).any():
        return None
    return (
        f"The contrastive loss{_at(graph, facts[0])} compares two views of each sample, and both "
        f"are the same numbers in all {units.count(len(ones))} graphs that were looked at: the "
        "pairs are equal whatever the model computes, so it learns to keep samples apart alone. "
        "Transform each view by itself: check seeds, generators, and copies of a transformed batch."
    )


def _ratio(graph: LossGraph, facts: list[str], kinds: pd.Series[float]) -> str | None:
    if len(kinds) < _MIN_GRAPHS or (kinds < 0).any() or not (kinds > 0).any():
        return None
    return (
        f"The ratio{_at(graph, facts[0])} of new to old probabilities is exactly 1, also for "
        "samples that earlier steps have trained with: the old probabilities are those of the "
        "policy of this step, so clamping does nothing. Store log_prob as the samples are drawn."
    )


def _negative(graph: LossGraph, facts: list[str], ones: pd.Series[float]) -> str | None:
    node = graph.nodes[int(facts[0])]
    terms = "x - exp(x)" if node.name == "Exp" else "log(x) - x"
    return (
        f"The loss adds {terms}{_at(graph, facts[0])} with a positive factor, which has no least "
        "value: a KL divergence has the opposite sign, so the training drives distributions apart. "
        "Use -0.5 * (1 + logvar - mu**2 - logvar.exp()), and add it to the loss."
    )


def _summed(graph: LossGraph, facts: list[str], times: pd.Series[float]) -> str | None:
    return (
        f"The loss sums the KL divergence{_at(graph, facts[0])} over all {facts[2]} samples, and "
        f"adds it to the mean of a loss{_at(graph, facts[1])} over samples and numbers: the "
        f"divergence weighs {units.number(times.iloc[0])} times what it should, more so in larger "
        "batches, and the model learns to leave its input out (posterior collapse). Sum both and "
        "divide by the number of samples: reduction='sum', and (BCE + KLD) / len(x)."
    )
