"""Finds inputs of modules that view() was to transpose: the numbers stay in their old order.

`images.view(n, 3, h, w)` of a tensor of shape [n, h, w, 3] mixes pixels and colours; permute() does
not. Such an input is a view of another tensor with the same lengths in another order, and both are
contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_MIN_DIMS = 3


def reordered(tensors: Iterable[torch.Tensor]) -> tuple[list[int], list[int]] | None:
    """Returns the shapes of the first such tensor, and of that which it is a view of."""
    for one in tensors:
        base = one._base
        if base is None or one.dim() < _MIN_DIMS or one.dim() != base.dim():
            continue
        shape, before = list(one.shape), list(base.shape)
        if sorted(shape) != sorted(before) or _longer(shape) == _longer(before):
            continue
        if one.is_contiguous() and base.is_contiguous():
            return shape, before
    return None


def _longer(shape: list[int]) -> list[int]:
    """Returns lengths other than 1, whose order is that of the numbers."""
    return [one for one in shape if one != 1]
