"""Looks for padding in the tokens of the first graph: targets of a loss that are padded as well,
attention that sees padding alone, and ends of rows that a loss leaves out with the padding.

Rows of unequal length are filled up with one number that occurs nowhere else, so padding shows in
the tokens themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

_MIN_ROWS, _MIN_LENGTH = 3, 4


class Padding(NamedTuple):
    """The number that fills up rows, and where it is: bool, [rows, length]."""

    number: int
    there: torch.Tensor


class CountedPadding(NamedTuple):
    """The class of all targets at padded positions, and their share of all that are counted."""

    label: int
    share: float


def padding(tokens: torch.Tensor) -> Padding | None:
    """Returns what fills up the ends or the begins of rows [rows, length]; None if nothing does."""
    if tokens.dim() != 2 or tokens.shape[0] < _MIN_ROWS or tokens.shape[1] < _MIN_LENGTH:
        return None
    for ends in (tokens, tokens.flip(1)):
        number = int(ends[:, -1].mode().values)
        same = tokens == number
        run = (ends == number).flip(1).long().cumprod(1).sum(1)
        alone = int(same.sum()) == int(run.sum())
        if alone and run.max() > 1 and run.min() < run.max() < tokens.shape[1]:
            return Padding(number, same)
    return None


def counted_padding(padded: Padding, targets: torch.Tensor, ignored: int) -> CountedPadding | None:
    """Returns what targets at padded positions are; None where others have their class too, as
    then it may be meant.

    Targets of shape [rows * length] or [rows * (length - 1)], of the positions or of those after.
    """
    number, pad = padded
    rows, length = pad.shape
    if targets.numel() == rows * (length - 1):
        pad = pad[:, 1:]
    elif targets.numel() != pad.numel():
        return None
    own = targets.reshape(pad.shape)
    labels = own[pad]
    if not len(labels) or int(labels[0]) == ignored or bool((labels != labels[0]).any()):
        return None
    label = int(labels[0])
    found = own == label
    allowed = pad.clone()
    if label == number:  # the next tokens: what comes after the last one is padding
        allowed[:, :-1] |= pad[:, 1:]
        allowed[:, 1:] |= pad[:, :-1]
        allowed[:, -1] = True
    if (found & ~allowed).any():
        return None
    counted = own != ignored
    return CountedPadding(label, float((found & counted).sum() / counted.sum()))


def leaves_out_ends(tokens: torch.Tensor, targets: torch.Tensor, ignored: int) -> bool:
    """Returns whether a loss of next tokens leaves out the token that ends each row, also where
    it is not padding: in the longest row, which nothing fills up. False where rows need no other
    end, as the token before it is always the same.

    Targets of shape [rows * length] or [rows * (length - 1)], of the positions after.
    """
    rows, length = tokens.shape
    same = tokens == tokens[0, -1]
    after, before = (one.long().cumprod(1).sum(1) for one in (same.flip(1), same))
    filled = after + before
    if int(same.sum()) != int(filled.sum()) or not 1 == filled.min() == after.min() < filled.max():
        return False
    last = tokens.gather(1, (length - 1 - after)[:, None])
    own = targets.reshape(rows, -1)[:, : length - 1]
    return bool((last != last[0]).any() and (own[same[:, 1:]] == ignored).all())


def sees_padding_alone(padded: Padding, visible: torch.Tensor) -> bool:
    """Returns whether attention sees padded positions and no others; `visible`: [rows, ...,
    length] or [rows * heads, ...]."""
    _, pad = padded
    rows, length = pad.shape
    if visible.dim() < 3 or visible.shape[-1] != length or visible.shape[0] % rows:
        return False
    seen = visible.reshape(rows, -1, length).any(1)
    return bool(torch.equal(seen, pad))
