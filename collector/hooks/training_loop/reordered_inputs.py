"""Finds inputs of modules that were not prepared as was meant.

Some view() was to transpose: the numbers stay in their old order. `images.view(n, 3, h, w)` of a
tensor of shape [n, h, w, 3] mixes pixels and colours; permute() does not. Such an input is a view
of another tensor, or of some of its rows, with the same lengths in another order, and both are
contiguous. Others were scaled by a transform, and once more by the training loop.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_MIN_DIMS = 3
_MIN_NUMBERS, _MIN_DISTINCT = 64, 16
_BYTE, _ROUNDING = 255, 1e-2


def reordered(tensors: Iterable[torch.Tensor]) -> tuple[list[int], list[int]] | None:
    """Returns the shapes of the first such tensor, and of the rows that it is a view of."""
    for one in tensors:
        base = one._base
        if base is None or one.dim() < _MIN_DIMS or one.dim() != base.dim():
            continue
        shape, before = list(one.shape), list(base.shape)
        if one.numel() < base.numel() and not one.storage_offset() % base.stride(0):
            before[0] = shape[0]  # of so many rows
        if sorted(shape) != sorted(before) or _longer(shape) == _longer(before):
            continue
        if one.is_contiguous() and base.is_contiguous():
            return shape, before
    return None


def is_divided_twice(few: torch.Tensor) -> bool:
    """Returns whether numbers are bytes that were divided by 255, twice."""
    if few.numel() < _MIN_NUMBERS or not few.is_floating_point():
        return False
    numbers = few.double() * _BYTE**2
    whole = numbers.round()
    if whole.min() < 0 or not _BYTE / 2 < whole.max() <= _BYTE:
        return False
    exact = (numbers - whole).abs().max() < _ROUNDING
    return bool(exact) and len({*whole.flatten().tolist()}) >= _MIN_DISTINCT


def mixes(before: list[int], shape: list[int]) -> bool:
    """Returns whether view() of these lengths as those puts positions into another order.

    Either two lengths are exchanged, or the last one is split, and one before it goes between the
    parts. Lengths that differ by 1 shift rows on purpose (relative positions).
    """
    if len(before) < _MIN_DIMS:
        return False
    if len(shape) == len(before) + 1:
        *rows, row, last = before
        split = [*rows, last // shape[-1] if shape[-1] else 0, row, shape[-1]]
        return shape == split and 1 not in shape[-3:] and split[-3] != row
    old, new = _longer(before), _longer(shape)
    if len(shape) != len(before) or sorted(old) != sorted(new) or old == new:
        return False
    moved = [one for one, other in zip(old, new, strict=True) if one != other]
    return max(moved) - min(moved) > 1


def _longer(shape: list[int]) -> list[int]:
    """Returns lengths other than 1, whose order is that of the numbers."""
    return [one for one in shape if one != 1]
