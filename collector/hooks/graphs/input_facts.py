"""Yields what the graph shows of the data that a model gets: bytes that nothing scales, how large
features are, and a class of samples that the loss leaves out as if it were padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from ...format.loop_names import IGNORED_CLASS, LARGE_FEATURES, NARROW_DATA, UNSCALED_BYTES
from ..training.batches import few_of
from .node_facts import ignored_class, on_host, saved_tensor, short_name

_MAX_NODES = 2000
_MIN_SAMPLES = 8
_BYTE, _BRIGHT = 255, 128
"""The largest number of a byte, and what one of a picture reaches."""

_MIN_NUMBERS, _MIN_FEATURES = 32, 64
"""Different ones among the elements that are read, and numbers of a sample: other whole numbers, as
of a table, are fewer."""

_MIN_LARGE = 0.2
"""Of the numbers of a sample: so many are larger than that in one sample or another."""

_DATA = {"AddmmBackward0": (1, "mat1"), "ConvolutionBackward0": (0, "input")}
"""Nodes of layers: the position of their input, and its name."""


def input_facts(nodes: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yields names and numbers of series, from names and nodes in the order of a graph."""
    samples, tokens = set[int](), False
    losses = []
    for number, (name, node) in enumerate(islice(nodes, _MAX_NODES)):
        tokens |= name.startswith("Embedding")
        if name == "NllLossBackward0":
            losses.append((number, node))
        data = _data(node, *_DATA[name]) if name in _DATA else None
        if data is not None:
            samples.add(len(data))
            yield from _unscaled(data, number)
            yield from _sizes(data, number)
    if not tokens:
        for number, node in losses:
            yield from _left_out(node, number, samples)


def _data(node: Any, place: int, name: str) -> torch.Tensor | None:
    """Returns what a layer gets, a row per sample, where no layer is before it."""
    data = saved_tensor(node, f"_raw_saved_{name}")
    if node.next_functions[place][0] is not None or not on_host(data) or not data.numel():
        return None
    of = data._base
    positions = name == "mat1" and of is not None and of.dim() > 2 and len(of) != len(data)
    return None if positions or not data.is_floating_point() else data


def _unscaled(data: torch.Tensor, number: int) -> Iterator[tuple[str, float]]:
    """Yields UNSCALED_BYTES of data that may be pictures."""
    if len(data) < _MIN_SAMPLES or data[0].numel() < _MIN_FEATURES:
        return
    few = few_of(data).double()
    low, high = float(few.min()), float(few.max())
    whole = low >= 0 and _BRIGHT <= high <= _BYTE and bool((few == few.round()).all())
    large = few.flatten(1).amax(0) > _MIN_NUMBERS
    are_bytes = (
        whole
        and len(set(few.flatten().tolist())) >= _MIN_NUMBERS
        and large.double().mean() >= _MIN_LARGE
    )
    yield f"{UNSCALED_BYTES}{number}", high if are_bytes else 0.0


def _sizes(data: torch.Tensor, number: int) -> Iterator[tuple[str, float]]:
    """Yields LARGE_FEATURES and NARROW_DATA of data."""
    if len(data) < _MIN_SAMPLES:
        return
    few = few_of(data).double()
    if few.dim() == 2:
        yield f"{LARGE_FEATURES}{number}", float(few.square().mean(0).max().sqrt())
    if data[0].numel() >= _MIN_FEATURES:
        spread, mean = float(few.std()), abs(float(few.mean()))
        yield f"{NARROW_DATA}{number}", spread / mean if spread and mean else 1.0


def _left_out(node: Any, number: int, samples: set[int]) -> Iterator[tuple[str, float]]:
    """Yields IGNORED_CLASS of a loss with a target for each sample."""
    scores = node.next_functions[0][0]
    while short_name(scores) in ("LogSoftmaxBackward0", "ToCopyBackward0"):
        scores = scores.next_functions[0][0]
    target, given = (saved_tensor(node, f"_raw_saved_{one}") for one in ("target", "self"))
    if short_name(scores) != "AddmmBackward0" or given is None or not on_host(target):
        return
    count, classes, left_out = target.numel(), given.shape[-1], ignored_class(node)
    of = target if target._base is None else target._base
    single = target.dim() == 1 and of[:1].numel() == 1
    if single and count in samples and count >= _MIN_SAMPLES and 0 <= left_out < classes > 1:
        share = float((target == left_out).double().mean())
        yield f"{IGNORED_CLASS}{number}/{left_out}/{classes}", share
