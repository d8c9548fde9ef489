"""Numbers of many tensors at once: norms, spreads; and of which they can be taken at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...recorder.private_names import optional


class Host(Protocol):
    """Reads tensors in host memory without torch; None: there is one that it cannot read."""

    def norms_of(self, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """L2 norms."""

    def spreads_of(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What `Norms.spread` gives."""

    def thinned(self, tensors: list[torch.Tensor], most: int) -> list[torch.Tensor] | None:
        """What `Norms.thinned` gives."""


LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Sums of squares overflow or vanish in them."""

SMALL = 1e-15
"""Below it the squares that make up a norm may vanish in float32."""

WITH_DOUBLES = ("cuda",)
"""Devices that take float64 from memory as quickly as float32; some have none at all."""


def _norm_each(
    tensors: list[torch.Tensor], order: int, dtype: torch.dtype | None
) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]


_norms: Callable[..., Any] = optional("torch", "_foreach_norm", "") or _norm_each


@dataclass
class Alike:
    """Gradients of one device and dtype, with their positions among an optimizer's parameters."""

    positions: list[int] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    norms: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Norms:
    """Takes L2 norms, in double precision where it is to be had: finite if all numbers are."""

    def __init__(self, host: Host | None) -> None:
        self._host = host

    def of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Norms of tensors of one device and dtype, on that device, in one call."""
        first = tensors[0]
        if self._host is not None and first.device.type == "cpu":
            found = self._host.norms_of(tensors)
            if found is not None:
                return found
        if first.device.type == "cpu":
            return _in_host_memory(tensors)
        wide = torch.float32 if first.dtype in LOW_PRECISION else None
        if first.device.type in WITH_DOUBLES:
            wide = torch.complex128 if first.is_complex() else torch.float64
        return torch.stack(_norms(tensors, 2, dtype=wide))

    def spread(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The largest absolute value of each, NaN where there is one, and how many are not 0.

        Of tensors of one device and dtype, none of them empty.
        """
        if self._host is not None and tensors[0].device.type == "cpu":
            found = self._host.spreads_of(tensors)
            if found is not None:
                return found
        largest = torch.stack([_largest(one) for one in tensors])
        return largest, torch.stack([tensor.count_nonzero() for tensor in tensors])

    def thinned(self, tensors: list[torch.Tensor], most: int) -> list[torch.Tensor]:
        """Copies of at most that many elements of each, evenly spaced, in float64 or as they are.

        Of tensors of one device and dtype.
        """
        if self._host is not None and tensors[0].device.type == "cpu":
            found = self._host.thinned(tensors, most)
            if found is not None:
                return found
        return [
            one.detach().reshape(-1)[:: max(1, -(-one.numel() // most))].clone() for one in tensors
        ]


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """The fused infinity norm takes 8 times as long on a CPU."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    low, high = torch.aminmax(real)
    return torch.maximum(low.neg(), high)


def _in_host_memory(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Double precision takes torch three times as long there: only where the other does not do."""
    low = tensors[0].dtype in LOW_PRECISION
    found = _norms(tensors, 2, dtype=torch.float32 if low else None)
    norms = torch.stack(found).to(torch.float64)
    for i in ((norms < SMALL) | ~norms.isfinite()).nonzero().flatten().tolist():
        if tensors[i].numel():
            norms[i] = _scaled_norm(tensors[i])
    return norms


def _scaled_norm(tensor: torch.Tensor) -> torch.Tensor:
    """The norm by way of numbers around 1, whose squares neither overflow nor vanish."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    largest = (torch.view_as_real(wide) if wide.is_complex() else wide).abs().amax()
    if largest == 0 or not largest.isfinite():
        return largest
    norm: torch.Tensor = torch.linalg.vector_norm(wide / largest)
    return norm * largest


def has_norm(tensor: torch.Tensor) -> bool:
    """Whether operators of torch's own compute on the tensor. What those of its class make of it
    may be of that class again, and no number: of such tensors nothing is said.
    """
    kind: Any = type(tensor)
    own = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return not own or kind.__name__ == "AsyncCollectiveTensor"  # on its way, else as any other


def alike(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Positions of tensors of one device and dtype, group by group.

    Sparse ones are left out, and those that have no norm.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        if not tensor.is_sparse and has_norm(tensor):
            groups[tensor.device, tensor.dtype].append(position)
    return list(groups.values())
