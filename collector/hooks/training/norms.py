"""Computes norms and spreads of many tensors at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ...recorder.private_names import optional
from .optimizer_parameters import PLAIN


class Host(Protocol):
    """Reads tensors in host memory without torch; None: one of them cannot be read."""

    def norms_of(self, tensors: list[torch.Tensor]) -> torch.Tensor | None:
        """Returns L2 norms."""

    def spreads_of(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Returns the result of `Norms.spread`."""

    def thinned(self, tensors: list[torch.Tensor], most: int) -> list[torch.Tensor] | None:
        """Returns the result of `Norms.thinned`."""


LOW_PRECISION = (torch.float16, torch.bfloat16)
"""Dtypes in which sums of squares overflow or vanish."""

_SMALL = 1e-15
"""Norm below which squares may vanish in float32."""

WITH_DOUBLES = ("cuda",)
"""Devices with fast float64; some have none at all."""


def _norm_each(
    tensors: list[torch.Tensor], order: float, dtype: torch.dtype | None = None
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
    """Computes L2 norms, in float64 where possible: finite if all elements are."""

    def __init__(self, host: Host | None) -> None:
        self._host = host

    def of(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Returns norms of tensors of one device and dtype, on that device, in one call."""
        first = tensors[0]
        if self._host is not None and first.device.type == "cpu":
            found = self._host.norms_of(tensors)
            if found is not None:
                return found
        if first.device.type == "cpu":
            return _in_host_memory(tensors)
        return torch.stack(_norms(tensors, 2, dtype=_wide(first)))

    def spread(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns each tensor's largest absolute value, NaN if it has one, and count of nonzeros.

        `tensors`: of one device and dtype, not empty.
        """
        if self._host is not None and tensors[0].device.type == "cpu":
            found = self._host.spreads_of(tensors)
            if found is not None:
                return found
        if tensors[0].device.type != "cpu":
            return _spread_in_few_kernels(tensors)
        largest = torch.stack([_largest(one) for one in tensors])
        return largest, torch.stack([tensor.count_nonzero() for tensor in tensors])

    def thinned(self, tensors: list[torch.Tensor], most: int) -> list[torch.Tensor]:
        """Returns at most `most` evenly spaced elements of each, in float64 or the tensor's dtype.

        `tensors`: of one device and dtype.
        """
        if self._host is not None and tensors[0].device.type == "cpu":
            found = self._host.thinned(tensors, most)
            if found is not None:
                return found
        chosen = [one.detach().reshape(-1)[:: max(1, -(-one.numel() // most))] for one in tensors]
        return list(torch.cat(chosen).split_with_sizes([len(one) for one in chosen]))


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the largest absolute value; 8 times as fast as the fused norm on a CPU."""
    low, high = torch.aminmax(_real(tensor))
    return torch.maximum(low.neg(), high)


def _spread_in_few_kernels(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `Norms.spread` does; of several hundred tensors, each launch counts."""
    largest = _norms([_real(one) for one in tensors], float("inf"))
    return torch.stack(largest), torch.stack(_norms(tensors, 0, dtype=_wide(tensors[0])))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _wide(tensor: torch.Tensor) -> torch.dtype | None:
    """Returns the dtype in which sums over a tensor on a device are taken; None: its own."""
    if tensor.device.type in WITH_DOUBLES:
        return torch.complex128 if tensor.is_complex() else torch.float64
    return torch.float32 if tensor.dtype in LOW_PRECISION else None


def _in_host_memory(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Returns norms on a CPU, in float64 only where float32 fails: that is three times slower."""
    low = tensors[0].dtype in LOW_PRECISION
    found = _norms(tensors, 2, dtype=torch.float32 if low else None)
    norms = torch.stack(found).to(torch.float64)
    for i in ((norms < _SMALL) | ~norms.isfinite()).nonzero().flatten().tolist():
        if tensors[i].numel():
            norms[i] = _scaled_norm(tensors[i])
    return norms


def _scaled_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the norm computed on scaled elements, whose squares neither overflow nor vanish."""
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    largest = (torch.view_as_real(wide) if wide.is_complex() else wide).abs().amax()
    if largest == 0 or not largest.isfinite():
        return largest
    norm: torch.Tensor = torch.linalg.vector_norm(wide / largest)
    return norm * largest


def has_norm(tensor: torch.Tensor) -> bool:
    """Returns whether torch's own operators compute on the tensor.

    The operators of another class may return that class again instead of a number.
    """
    kind: Any = type(tensor)
    own = kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    if own:
        return bool(kind.__name__ == "AsyncCollectiveTensor")  # plain except that it is pending
    return not tensor.is_nested


def alike(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Returns positions of tensors, grouped by device and dtype.

    Leaves out sparse ones and those without values (meta, freed) or a norm.
    """
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        readable = not tensor.is_sparse and not tensor.is_meta and has_norm(tensor)
        if readable and not is_freed(tensor):
            groups[tensor.device, tensor.dtype].append(position)
    return list(groups.values())


def is_freed(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor's memory was given back, as FSDP does with whole parameters."""
    known = type(tensor) in PLAIN and tensor.numel() > 0
    return known and not tensor.untyped_storage().nbytes()
