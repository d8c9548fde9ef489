"""L2 norms of many tensors at once, and which of them can be taken at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Their norms are accumulated in float32: a sum of squares overflows or vanishes in them."""


@dataclass
class Alike:
    """Gradients of one device and dtype, with their positions among an optimizer's parameters."""

    positions: list[int] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    norms: torch.Tensor = field(default_factory=lambda: torch.empty(0))


def norms_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """L2 norms of tensors of one device and dtype, on that device, in one fused call."""
    low = tensors[0].dtype in LOW_PRECISION
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32 if low else None))


def alike(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Positions of tensors of one device and dtype, group by group; sparse ones are left out."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        if not tensor.is_sparse:
            groups[tensor.device, tensor.dtype].append(position)
    return list(groups.values())
