"""Yields the mean slope of each tanh and sigmoid of a graph, from the results that it keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from ...format.loop_names import MEAN_SLOPE
from .node_facts import saved_tensor

_MIN_ELEMENTS, _MAX_ELEMENTS = 64, 4096
_MAX_NODES = 64


def slopes(nodes: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yields names of MEAN_SLOPE and numbers, from names and nodes in the order of the graph."""
    numbered = ((number, *one) for number, one in enumerate(nodes))
    known = ((number, name, node) for number, name, node in numbered if name in _SLOPES)
    for number, name, node in islice(known, _MAX_NODES):
        result = saved_tensor(node, "_raw_saved_result")
        if result is None or type(result) is not torch.Tensor or result.device.type != "cpu":
            continue
        if result.numel() >= _MIN_ELEMENTS and result.is_floating_point():
            few = result.detach().flatten()[:: -(-result.numel() // _MAX_ELEMENTS)].double()
            yield f"{MEAN_SLOPE}{number}", float(_SLOPES[name](few).mean())


def _of_tanh(result: torch.Tensor) -> torch.Tensor:
    return 1 - result.square()


def _of_sigmoid(result: torch.Tensor) -> torch.Tensor:
    return result * (1 - result)


_SLOPES = {"TanhBackward0": _of_tanh, "SigmoidBackward0": _of_sigmoid}
