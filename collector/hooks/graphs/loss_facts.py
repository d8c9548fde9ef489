"""Yields what the numbers of a graph show of its loss: targets that the model cannot return, texts
that are too long for CTC, scores that are flat, ratios that stay 1, a divergence with the wrong
sign or weight; whether layers get the same data for all samples, and the mean slope of tanh and
sigmoid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from ...format.loop_names import (
    DATA_ROWS,
    FLAT_SCORES,
    LONG_TEXTS,
    MEAN_SLOPE,
    POLICY_RATIO,
    SAME_VIEWS,
    UNREACHED_TARGETS,
)
from ..training.batches import few_of, raw_bytes
from ..training.replication import short_hash
from .divergences import divergences, scalar, source_of
from .node_facts import on_host, saved_tensor, short_name

_MAX_NODES = 2000
_MAX_ELEMENTS, _MAX_VECTORS, _MAX_NUMBERS = 4096, 64, 2**20
_MIN_RATIOS, _MAX_KEPT = 8, 2**15
_MIN_DISTINCT, _MIN_AGAIN = 0.9, 0.5
"""Shares of weights that no other sample of a graph has, and that an earlier graph had as well."""

_BOUNDS = {
    "ReluBackward0": (0.0, math.inf),
    "SigmoidBackward0": (0.0, 1.0),
    "SoftmaxBackward0": (0.0, 1.0),
    "TanhBackward0": (-1.0, 1.0),
}
_MARGIN = 0.02
"""Of the largest target: so far out of reach it is for rounding and for noise."""

_LOSSES = ("HuberLossBackward0", "L1LossBackward0", "MseLossBackward0", "SmoothL1LossBackward0")
_ERRORS = ("AbsBackward0", "PowBackward0")
_REDUCES = ("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1")
_LINEAR = {"AddmmBackward0": (1, "mat1"), "MmBackward0": (0, "self")}
"""Nodes of linear layers: the position of their input, and its name."""

_MIN_ROWS, _MIN_COLUMNS = 8, 2
_MIN_CLASSES, _NEAR_ONE = 8, 1e-3

_SLOPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "TanhBackward0": lambda result: 1 - result.square(),
    "SigmoidBackward0": lambda result: result * (1 - result),
}
_MAX_SLOPES, _MIN_ELEMENTS = 64, 64
"""Nodes, and elements of the result of each."""


def slopes(nodes: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yields names of MEAN_SLOPE and numbers, from names and nodes in the order of the graph."""
    known = ((number, *one) for number, one in enumerate(nodes) if one[0] in _SLOPES)
    for number, name, node in islice(known, _MAX_SLOPES):
        few = _few(saved_tensor(node, "_raw_saved_result"))
        if few is not None and len(few) >= _MIN_ELEMENTS:
            yield f"{MEAN_SLOPE}{number}", float(_SLOPES[name](few).mean())


class LossFacts:
    """Yields names and numbers of series, from names and nodes in the order of a graph."""

    def __init__(self) -> None:
        self._weights: set[float] = set()  # of samples of policies, in the graphs before

    def of(self, nodes: Iterable[tuple[str, Any]], *, first: bool) -> Iterator[tuple[str, float]]:
        """Yields the facts of a graph; `first`: of the process, also those that do not change."""
        given = [*islice(nodes, _MAX_NODES)]
        numbers = {node: number for number, (_, node) in enumerate(given)}
        named = {node: name for name, node in given}
        for name, node in given:
            if name in _LOSSES or name in _REDUCES:
                yield from _unreached(name, node, numbers)
            elif name.startswith("CtcLoss"):
                yield from _long_texts(node, numbers[node])
            elif name in _LINEAR:
                yield from _data_rows(node, numbers[node], *_LINEAR[name])
            elif name == "LogSoftmaxBackward0":
                yield from _flat(node, numbers[node])
            elif name == "NllLossBackward0":
                yield from _same_views(node, numbers[node])
        yield from self._ratios(given, numbers)
        if given:
            yield from divergences(given[0][1], numbers, named, first=first)

    def _ratios(
        self, given: Sequence[tuple[str, Any]], numbers: dict[Any, int]
    ) -> Iterator[tuple[str, float]]:
        """Of each ratio of probabilities that is clamped: 1 where it is exactly 1, and an earlier
        graph weighted half of the samples alike, 0 for new samples, -1 where it is another number.
        """
        clamped = {
            node.next_functions[0][0]
            for name, node in given
            if name.startswith("ClampBackward")
            and short_name(node.next_functions[0][0]) == "ExpBackward0"
        }
        for name, node in given:
            sides = [one for one, _ in node.next_functions] if name == "MulBackward0" else []
            place = next((place for place, one in enumerate(sides) if one in clamped), None)
            if place is None:
                continue
            ratio, other = sides[place], ("other", "self")[place]
            result = _few(saved_tensor(ratio, "_raw_saved_result"))
            weights = _few(saved_tensor(node, f"_raw_saved_{other}"))
            if result is None or weights is None or len(result) < _MIN_RATIOS:
                continue
            weighed = set(weights.tolist())
            if len(weighed) < _MIN_DISTINCT * len(weights):  # other samples may be weighted alike
                continue
            again = len(weighed & self._weights) >= _MIN_AGAIN * len(weighed)
            self._weights.update(islice(weighed, _MAX_KEPT - len(self._weights)))
            moved = bool((result != 1).any())
            yield f"{POLICY_RATIO}{numbers[ratio]}", -1.0 if moved else float(again)


def _few(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Returns evenly spaced numbers that can be read without waiting for a device."""
    if not on_host(tensor) or not tensor.numel() or not tensor.is_floating_point():
        return None
    return tensor.detach().flatten()[:: -(-tensor.numel() // _MAX_ELEMENTS)].double()


def _unreached(name: str, node: Any, numbers: dict[Any, int]) -> Iterator[tuple[str, float]]:
    """The share of targets that are outside of what the model's last function returns."""
    if name in _LOSSES:
        if getattr(node, "_saved_reduction", 0) == 0:
            return  # a mask may leave targets out later
        made, targets = (
            source_of(node.next_functions[0][0]),
            saved_tensor(node, "_raw_saved_target"),
        )
    else:
        made, targets = _of_difference(node.next_functions[0][0])
    few = _few(targets)
    bounds = _BOUNDS.get(short_name(made))
    if bounds is None or few is None or made not in numbers:
        return
    low, high = bounds
    margin = _MARGIN * float(few.abs().max())
    out = (few < low - margin) | (few > high + margin)
    yield f"{UNREACHED_TARGETS}{numbers[node]}/{numbers[made]}", float(out.double().mean())


def _of_difference(error: Any) -> tuple[Any, torch.Tensor | None]:
    """The last function and the targets of a loss that is written as a difference, if all numbers
    of it can be read."""
    if short_name(error) not in _ERRORS or short_name(error.next_functions[0][0]) != "SubBackward0":
        return None, None
    sides = [one for one, _ in error.next_functions[0][0].next_functions]
    known = [source_of(one) for one in sides if one is not None]
    result = saved_tensor(known[0], "_raw_saved_result") if len(known) == 1 else None
    difference = saved_tensor(error, "_raw_saved_self")
    if result is None or difference is None or result.numel() != difference.numel():
        return None, None
    if result.numel() > _MAX_NUMBERS or result.device.type != "cpu":
        return None, None
    returned = result.detach().reshape(difference.shape)
    subtracted = sides[0] is None  # targets - outputs
    return known[0], returned + difference.detach() * (1 if subtracted else -1)


def _long_texts(node: Any, number: int) -> Iterator[tuple[str, float]]:
    """The share of samples whose target has more labels than the input has positions."""
    inputs, targets = (_lengths(node, name) for name in ("input_lengths", "target_lengths"))
    if inputs and len(inputs) == len(targets):
        longer = sum(target > given for given, target in zip(inputs, targets, strict=True))
        yield f"{LONG_TEXTS}{number}", longer / len(inputs)


def _data_rows(node: Any, number: int, place: int, name: str) -> Iterator[tuple[str, float]]:
    """What DATA_ROWS says of what a layer gets; nothing if that has a gradient."""
    data = saved_tensor(node, f"_raw_saved_{name}")
    if node.next_functions[place][0] is not None or _few(data) is None or data is None:
        return
    if data.dim() == 2 and data.shape[0] >= _MIN_ROWS and data.shape[1] >= _MIN_COLUMNS:
        few = few_of(data)
        alike = bool((few == few[0]).all())
        if not alike or bool((few[0] != few[0, 0]).any()):  # ones stand in where there is no data
            sign = 1 if bool(((few[0] == 0) | (few[0] == 1)).all()) else -1
            yield f"{DATA_ROWS}{number}", sign * short_hash(raw_bytes(few[:1])) if alike else 0.0


def _lengths(node: Any, name: str) -> list[int]:
    lengths = getattr(node, f"_saved_{name}", ())
    if isinstance(lengths, (tuple, list)):
        return [*lengths]
    tensor = saved_tensor(node, f"_raw_saved_{name}")
    return tensor.tolist() if tensor is not None and tensor.device.type == "cpu" else []


def _flat(node: Any, number: int) -> Iterator[tuple[str, float]]:
    """The least that a cross-entropy of similarities between unit vectors can be, in shares of what
    it is if all are alike."""
    result = saved_tensor(node, "_raw_saved_result")
    if result is None or result.dim() != 2 or result.shape[1] < _MIN_CLASSES:
        return
    source, factor = _product(node)
    if source is None:
        return
    vectors = [saved_tensor(source, f"_raw_saved_{one}") for one in ("self", "mat2")]
    if all(_are_units(one, dim) for one, dim in zip(vectors, (1, 0), strict=True)):
        classes, factor = result.shape[1], abs(factor)
        least = math.log1p((classes - 1) * math.exp(-2 * factor))
        yield f"{FLAT_SCORES}{number}/{classes}/{factor:.4g}", least / math.log(classes)


def _product(node: Any) -> tuple[Any, float]:
    """Returns the node of the matrix product that a softmax is of, and by what it is multiplied
    before; None without one."""
    source, factor = source_of(node.next_functions[0][0]), 1.0
    while short_name(source) in ("DivBackward0", "MulBackward0"):
        times = scalar(source)
        if not times:
            return None, 0.0
        factor *= 1 / times if short_name(source).startswith("Div") else times
        source = source_of(source.next_functions[0][0])
    return (source, factor) if short_name(source) == "MmBackward0" else (None, 0.0)


def _same_views(node: Any, number: int) -> Iterator[tuple[str, float]]:
    """Whether a loss of pairs gets the same vectors twice, which two calls have computed."""
    made, target = node.next_functions[0][0], saved_tensor(node, "_raw_saved_target")
    if short_name(made) != "LogSoftmaxBackward0" or not on_host(target) or target.dim() != 1:
        return
    product, _ = _product(made)
    count = len(target)
    if product is None or not _MIN_ROWS <= count <= _MAX_ELEMENTS:
        return
    if not torch.equal(target, torch.arange(count, device="cpu")):
        return
    first, second = (source_of(one) for one, _ in product.next_functions)
    vectors, others = (saved_tensor(product, f"_raw_saved_{one}") for one in ("self", "mat2"))
    if first is second or not on_host(vectors) or not on_host(others):
        return
    if vectors.shape == others.T.shape and vectors.numel() <= _MAX_NUMBERS:
        yield f"{SAME_VIEWS}{number}", float(torch.equal(vectors.detach(), others.detach().T))


def _are_units(vectors: torch.Tensor | None, dim: int) -> bool:
    """Returns whether rows (`dim` 1) or columns of a matrix have the norm 1."""
    if not on_host(vectors) or vectors.dim() != 2 or not vectors.numel():
        return False
    rows = vectors.detach() if dim else vectors.detach().T
    norms = rows[:: -(-len(rows) // _MAX_VECTORS)].double().norm(dim=1)
    return bool((norms - 1).abs().max() < _NEAR_ONE)
