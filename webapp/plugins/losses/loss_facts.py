"""Finds losses that cannot become small, or have no least value, whatever the model learns.

The recorder looks at the numbers of the graph at the steps 0, 1, 2, 4, 8, ...: targets that the
last function of the model cannot return, texts that CTC cannot align, similarities of unit vectors
without a temperature, pairs of two views that are the same, ratios of a policy to itself, and
divergences with the wrong sign or weight, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from lanescope.collector.format.loop_names import (
    FLAT_SCORES,
    LONG_TEXTS,
    MAXIMIZES,
    NEGATIVE_DIVERGENCE,
    POLICY_RATIO,
    SAME_VIEWS,
    SUMMED_DIVERGENCE,
    UNREACHED_TARGETS,
    WEIGHTLESS_DIVERGENCE,
)
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    LossFact,
    LossNode,
    each_rank_of_graphs,
    loss_facts,
    of_nodes,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_GRAPHS = 3
_MIN_TARGETS, _MIN_TEXTS = 0.1, 0.1
_MIN_WEIGHTLESS = 7
"""Graphs of steps up to 32: a weight that grows from 0 is above it by then."""
_FLAT = 0.75
"""The least loss, as a share of that of equal scores."""

_RETURNS = {
    "Relu": "below 0, and relu{made} returns none",
    "Sigmoid": "outside of 0 to 1, and sigmoid{made} returns nothing else",
    "Softmax": "outside of 0 to 1, and softmax{made} returns nothing else",
    "Tanh": "outside of -1 to 1, and tanh{made} returns nothing else",
}

_Says = Callable[[LossFact], str | None]
"""Says which fault a fact shows; None where it shows none."""


def _each_fact(
    prefix: str, cause: str, unless: str = ""
) -> Callable[[_Says], Callable[[Run], list[Finding]]]:
    """Turns what to say of a fact of a series into a question about a run; nothing is found where
    there is a value of the series `unless`."""

    def of_question(says: _Says) -> Callable[[Run], list[Finding]]:
        @each_rank_of_graphs
        @wraps(says)
        def of_rank(run: Run, rank: int) -> Finding | None:
            for fact in loss_facts(run, rank, prefix):
                said = says(fact)
                if said is not None and (not unless or logged(run, None, unless).empty):
                    evidence = {"cause": cause, "graphs": len(fact.values)}
                    return fact.finding(run, rank, title=said, evidence=evidence)
            return None

        return of_rank

    return of_question


def _other(fact: LossFact) -> LossNode | None:
    """The second node that a fact is about."""
    return fact.graph.nodes.get(int(fact.rest[0]))


@_each_fact(UNREACHED_TARGETS, "unreached_targets")
def unreached_targets(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    made = _other(fact)
    if made is None or made.name not in _RETURNS:
        return None
    if len(fact.values) < _MIN_GRAPHS or fact.values.min() < _MIN_TARGETS:
        return None
    return (
        f"{units.share(fact.values.mean())} of the targets of the loss{fact.node.at} are "
        f"{_RETURNS[made.name].format(made=made.at)}: the model cannot come near them. Leave that "
        "function out of the last layer, or scale the targets."
    )


@of_nodes("CtcLoss", "CTC loss")
@_each_fact(LONG_TEXTS, "long_texts")
def long_texts(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if len(fact.values) < _MIN_GRAPHS or fact.values.mean() < _MIN_TEXTS:
        return None
    return (
        f"{units.share(fact.values.mean())} of the samples of the CTC loss{fact.node.at} have "
        "more labels than positions: no path gives these labels, so the loss is infinite, or 0 "
        "with zero_infinity=True, and the samples teach nothing. Reduce the strides of the "
        "model, or leave such samples out; check input_lengths and target_lengths."
    )


@of_nodes("LogSoftmax", "log_softmax")
@_each_fact(FLAT_SCORES, "flat_scores")
def flat_scores(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if len(fact.values) < _MIN_GRAPHS or fact.values.min() < _FLAT:
        return None
    count, scale = fact.rest
    return (
        f"The loss{fact.node.at} compares unit vectors, and multiplies their products, which are 1 "
        f"at most, by {scale}: the softmax over {count} of them stays flat, and "
        f"{units.share(fact.values.min())} of the first loss remain in the best case. Divide the "
        "products by the temperature (0.07) instead of multiplying by it, or use a scale of 10 to "
        "100."
    )


@_each_fact(SAME_VIEWS, "same_views")
def same_views(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if len(fact.values) < _MIN_GRAPHS or (fact.values < 1).any():
        return None
    return (
        f"The contrastive loss{fact.node.at} compares two views of each sample, and both are the "
        f"same numbers in all {units.count(len(fact.values))} graphs that were looked at: the "
        "pairs are equal whatever the model computes, so it learns to keep samples apart alone. "
        "Transform each view by itself: check seeds, generators, and copies of a transformed batch."
    )


@of_nodes("Clamp", "clamp()")
@_each_fact(POLICY_RATIO, "constant_ratio")
def constant_ratios(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if len(fact.values) < _MIN_GRAPHS or (fact.values < 0).any() or not (fact.values > 0).any():
        return None
    return (
        f"The ratio{fact.node.at} of new to old probabilities is exactly 1, also for "
        "samples that earlier steps have trained with: the old probabilities are those of the "
        "policy of this step, so clamping does nothing. Store log_prob as the samples are drawn."
    )


@of_nodes("^(Exp|Log)Backward", "exponential or logarithm")
@_each_fact(NEGATIVE_DIVERGENCE, "negative_divergence", unless=MAXIMIZES)
def negative_divergences(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    terms = "x - exp(x)" if fact.node.name == "Exp" else "log(x) - x"
    return (
        f"The loss adds {terms}{fact.node.at} with a positive factor, which has no least "
        "value: a KL divergence has the opposite sign, so the training drives distributions apart. "
        "Use -0.5 * (1 + logvar - mu**2 - logvar.exp()), and add it to the loss."
    )


@of_nodes("^ExpBackward", "exponential")
@_each_fact(WEIGHTLESS_DIVERGENCE, "weightless_divergence")
def weightless_divergences(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if len(fact.values) < _MIN_WEIGHTLESS or (fact.values < 1).any():
        return None
    return (
        f"The KL divergence{fact.node.at} has the weight 0 in all {units.count(len(fact.values))} "
        f"graphs that were looked at, up to step {2 ** (len(fact.values) - 2)}: it trains nothing. "
        "Check what anneals the weight: a step that is not counted, // in place of /, a warm-up in "
        "other units."
    )


@of_nodes("^ExpBackward", "exponential")
@_each_fact(SUMMED_DIVERGENCE, "summed_divergence")
def summed_divergences(fact: LossFact) -> str | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    mean = _other(fact)
    return (
        f"The loss sums the KL divergence{fact.node.at} over all {fact.rest[1]} samples, and "
        f"adds it to the mean of a loss{mean.at if mean else ''} over samples and numbers: the "
        f"divergence weighs {units.number(fact.values.iloc[0])} times what it should, more so in "
        "larger batches, and the model learns to leave its input out (posterior collapse). Sum "
        "both and divide by the number of samples: reduction='sum', and (BCE + KLD) / len(x)."
    )
