"""Yields weights that begin as one row, or as one number: all units of a layer are alike."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

from ...format.loop_names import EQUAL_ROWS
from ..training.modules import Modules

_MIN_ROWS = 8
"""Of a weight that begins as one row; of fewer, all numbers are the same."""
_MAX_WEIGHTS = 20


def equal_rows(root: nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    """Yields names of EQUAL_ROWS of a model's weights, and their numbers of rows."""
    for weight in islice(filter(_are_equal, root.parameters()), _MAX_WEIGHTS):
        name = modules.parameter_name(weight)
        if name is not None:
            yield f"{EQUAL_ROWS}{name}", float(len(weight))


def _are_equal(weight: torch.Tensor) -> bool:
    """Whether a trained weight in host memory has only rows that are one row, and not zero."""
    if type(weight) is not nn.Parameter or not weight.requires_grad or weight.dim() < 2:
        return False
    if weight.device.type != "cpu" or weight.layout != torch.strided or not weight.numel():
        return False
    rows = weight.detach()
    if len(rows) < _MIN_ROWS:
        rows = rows.reshape(-1, 1)
    # Of most weights the first two are all that is read.
    same = bool(rows[0].any()) and torch.equal(rows[0], rows[-1])
    return same and torch.equal(rows, rows[:1].expand_as(rows))
