"""Yields what a graph shows of KL divergences in its loss: a weight of 0, the wrong sign, or a sum
over samples beside a mean; and by what nodes multiply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ...format.loop_names import (
    NEGATIVE_DIVERGENCE,
    SUMMED_DIVERGENCE,
    WEIGHTLESS_DIVERGENCE,
)
from .node_facts import on_host, saved_tensor, short_name, takes_mean

_MAX_VIEWS = 4096

_SAME = (
    "CloneBackward0",
    "ExpandBackward0",
    "PermuteBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "TBackward0",
    "ToCopyBackward0",
    "TransposeBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
)
"""Nodes of operators that hand on the numbers of their input."""

_SAMPLE_LOSSES = (
    "BinaryCrossEntropyBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
    "MseLossBackward0",
)
_OF_A_DIVERGENCE, _MIN_SAMPLES = 0.5, 8
"""The factor of exp(logvar) in a KL divergence."""


def source_of(node: Any) -> Any:
    """Returns the node that made the numbers of a node: itself, or one before views of it."""
    for _ in range(_MAX_VIEWS):
        if short_name(node) not in _SAME:
            break
        node = node.next_functions[0][0]
    return node


def scalar(node: Any) -> float | None:
    """Returns the number that a tensor is multiplied with or divided by; None: not known."""
    if sum(one is not None for one, _ in node.next_functions) != 1:
        return None
    number = saved_tensor(node, "_raw_saved_other")
    if not on_host(number) or number.dim():
        return None
    return float(number.detach())


def divergences(
    root: Any, numbers: dict[Any, int], named: dict[Any, str], *, first: bool
) -> Iterator[tuple[str, float]]:
    """Yields whether KL divergences have the weight 0, and of the `first` graph of a process
    differences x - exp(x) and log(x) - x that the loss adds up: they have no least value. And
    exp(x) - x, a KL divergence, summed over a batch beside a loss that is a mean over it."""
    factors = _factors(root, numbers)
    for node, factor in factors.items():
        if named[node] == "ExpBackward0" and source_of(node.next_functions[0][0]) in factors:
            yield f"{WEIGHTLESS_DIVERGENCE}{numbers[node]}", float(factor == 0)
    for node, factor in factors.items() if first else ():
        inner = source_of(node.next_functions[0][0]) if node.next_functions else None
        wrong = _WRONG_SIGNS.get(named[node], 0.0)
        other = factors.get(inner, 0.0)
        if factor * wrong > 0 and other * wrong < 0:
            yield f"{NEGATIVE_DIVERGENCE}{numbers[node]}", 1.0
            break
        if named[node] == "ExpBackward0" and other < 0 < factor:
            yield from _summed_divergence(node, factors, numbers, named)
            break


def _summed_divergence(
    node: Any, factors: dict[Any, float], numbers: dict[Any, int], named: dict[Any, str]
) -> Iterator[tuple[str, float]]:
    """How many times a KL divergence weighs what it does beside the loss of the same samples, if
    the one is summed over them and the other is their mean."""
    result = saved_tensor(node, "_raw_saved_result")
    for loss, factor in factors.items():
        mean = named[loss] in _SAMPLE_LOSSES and takes_mean(loss)
        compared = saved_tensor(loss, "_raw_saved_self") if mean else None
        if (
            compared is None
            or result is None
            or factor <= 0
            or min(result.dim(), compared.dim()) < 2
        ):
            continue
        samples = len(result)
        times = factors[node] / _OF_A_DIVERGENCE * compared.numel() / factor
        if len(compared) == samples >= _MIN_SAMPLES and 2 * times >= compared.numel():
            yield f"{SUMMED_DIVERGENCE}{numbers[node]}/{numbers[loss]}/{samples}", times
            return


_WRONG_SIGNS = {"ExpBackward0": -1.0, "LogBackward0": 1.0}


def _factors(root: Any, numbers: dict[Any, int]) -> dict[Any, float]:
    """Returns the nodes whose elements the loss adds up, and with what factor."""
    found: dict[Any, float] = {}
    ahead = [(root, 1.0)]
    while ahead:
        given, factor = ahead.pop()
        node = source_of(given)
        if node not in numbers or node in found:
            continue
        found[node] = factor
        sides = node.next_functions
        name = short_name(node).removesuffix("0").removesuffix("1").removesuffix("Backward")
        of = _TERMS.get(name)
        for place, (one, _) in enumerate(sides):
            times = None if of is None or one is None else of(node, place)
            if times is not None:  # those of weight 0 come last
                ahead.insert(len(ahead) if times and factor else 0, (one, factor * times))
    return found


def _same(node: Any, place: int) -> float:
    return 1.0


def _second(node: Any, place: int) -> float:
    """The factor of a side of a sum; alpha multiplies the second one."""
    return float(getattr(node, "_saved_alpha", 1)) if place else 1.0


def _share(node: Any, place: int) -> float | None:
    """The factor of each number of a mean."""
    before, made = getattr(node, "_saved_self_sym_numel", 0), node._input_metadata
    return math.prod(made[0].shape) / before if type(before) is int and before and made else None


def _inverse(node: Any, place: int) -> float | None:
    number = scalar(node)
    return 1 / number if number else None


_TERMS: dict[str, Callable[[Any, int], float | None]] = {
    "Add": _second,
    "Div": _inverse,
    "Mean": _share,
    "Mul": lambda node, place: scalar(node),
    "Neg": lambda node, place: -1.0,
    "Rsub": lambda node, place: -1.0,
    "Sub": lambda node, place: -_second(node, place) if place else 1.0,
    "Sum": _same,
}
