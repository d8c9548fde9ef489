"""The fingerprint once more, straight from its definition, in numpy and Python integers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

MASK = 2**64 - 1


class Reference(NamedTuple):
    hash: int
    nan: int
    inf: int
    zeros: int
    mean: float
    l2: float
    min: float
    max: float


def splitmix64(k: int) -> int:
    z = (k + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def words(tensor: torch.Tensor) -> list[int]:
    """Unsigned 32-bit words of the elements in logical order."""
    size = tensor.element_size()
    data = (
        bytes(
            tensor.detach()
            .resolve_conj()
            .clone(memory_format=torch.contiguous_format)
            .view(-1)
            .view(torch.uint8)
            .numpy()
        )
        if tensor.numel()
        else b""
    )
    kind: Any = {1: "<u1", 2: "<u2"}.get(size, "<u4")
    return [int(u) for u in np.frombuffer(data, kind)]


def hash_of(tensor: torch.Tensor) -> int:
    total = 0
    for k, u in enumerate(words(tensor)):
        weight = (splitmix64(k % 1024) | 1) * (splitmix64(1024 + k // 1024) | 1)
        total += (u ^ u >> 16) * weight
    total &= MASK
    return total - 2**64 if total >= 2**63 else total


def reference(tensor: torch.Tensor) -> Reference:
    values = tensor.detach().resolve_conj()
    if values.is_complex():
        values = torch.view_as_real(values)
    wide = [float(x) for x in values.to(torch.float64).reshape(-1).tolist()]
    finite = [x for x in wide if math.isfinite(x)]
    return Reference(
        hash=hash_of(tensor),
        nan=sum(math.isnan(x) for x in wide),
        inf=sum(math.isinf(x) for x in wide),
        zeros=sum(x == 0 for x in wide),
        mean=math.fsum(finite) / len(finite) if finite else math.nan,
        l2=math.sqrt(math.fsum(x * x for x in finite)),
        min=min(finite) + 0.0 if finite else math.nan,
        max=max(finite) + 0.0 if finite else math.nan,
    )
