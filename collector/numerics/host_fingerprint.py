"""Computes the fingerprint of tensors in host memory with numpy, without torch's overhead.

Used where the observer is not available; `fingerprint.py` holds the definition.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .fingerprint import BLOCK, logical_order

_CHUNK = BLOCK * 1024  # words per batch: bounds the memory of intermediate results
_BITS = {1: "u1", 2: "u2", 4: "u4"}
_BY_NUMPY = {
    torch.float32: "f4",
    torch.float64: "f8",
    torch.float16: "f2",
    torch.bool: "?",
    torch.uint8: "u1",
    torch.int8: "i1",
    torch.int16: "i2",
    torch.int32: "i4",
    torch.int64: "i8",
}


class Numbers(NamedTuple):
    """Hash and statistics of a tensor."""

    hash: int
    nan: int
    inf: int
    zeros: int
    mean: float
    l2: float
    low: float
    high: float

    @property
    def finite(self) -> bool:
        """True if the tensor holds neither NaN nor Inf."""
        return not self.nan and not self.inf


def numbers_of(tensor: torch.Tensor) -> Numbers:
    """Computes the fingerprint of a tensor in host memory that `can_read`."""
    flat = logical_order(tensor)
    return Numbers(flat_hash(flat), *_statistics(flat))


def host_hash_of(tensor: torch.Tensor) -> int:
    """Computes the hash of a tensor in host memory that `can_read`."""
    return flat_hash(logical_order(tensor))


def flat_hash(flat: torch.Tensor) -> int:
    """Computes the hash of a contiguous 1-dimensional tensor in host memory."""
    if not flat.numel():
        return 0
    words = _array(flat, _BITS[min(flat.element_size(), 4)])
    total = 0
    for first in range(0, len(words), _CHUNK):
        bits = words[first : first + _CHUNK].astype(np.uint64)
        bits ^= bits >> np.uint64(16)
        blocks = -(-len(bits) // BLOCK)
        if blocks == 1:
            sums = (bits * _INNER[: len(bits)]).sum(keepdims=True)
        else:
            padded = np.zeros(blocks * BLOCK, np.uint64)
            padded[: len(bits)] = bits
            sums = (padded.reshape(blocks, BLOCK) * _INNER).sum(1)
        total += int((sums * _weights(BLOCK + first // BLOCK, blocks)).sum())
    total &= 2**64 - 1
    return total - 2**64 if total >= 2**63 else total


class _Memory:
    """A tensor's memory as numpy reads it.

    `Tensor.numpy` would do, but then the program could not resize the tensor's storage any more.
    """

    def __init__(self, flat: torch.Tensor, kind: str) -> None:
        self._flat = flat  # keeps the memory
        dtype = np.dtype(kind)
        self.__array_interface__ = {
            "version": 3,
            "shape": (flat.numel() * flat.element_size() // dtype.itemsize,),
            "typestr": dtype.str,
            "data": (flat.data_ptr(), True),
        }


def _array(flat: torch.Tensor, kind: str) -> NDArray[Any]:
    """Returns the memory of a contiguous tensor, not copied, as a read-only array of the kind."""
    return np.asarray(_Memory(flat, kind))


@lru_cache(maxsize=64)
def _weights(first: int, count: int) -> NDArray[np.uint64]:
    z = np.arange(first + 1, first + 1 + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


_INNER = _weights(0, BLOCK)


def _statistics(flat: torch.Tensor) -> tuple[int, int, int, float, float, float, float]:
    values = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    nan = inf = zeros = count = 0
    total = squares = 0.0
    low, high = math.inf, -math.inf
    for first in range(0, values.numel(), _CHUNK):
        part = values[first : first + _CHUNK]
        wide = part if part.dtype in _BY_NUMPY else part.to(torch.float64)
        x: NDArray[np.float64] = _array(wide, _BY_NUMPY[wide.dtype]).astype(np.float64)
        found = float(x.dot(x))
        if not math.isfinite(found):
            nan += int(np.isnan(x).sum())
            inf += int(np.isinf(x).sum())
            x = x[np.isfinite(x)]
            with np.errstate(over="ignore"):
                found = float(x.dot(x))
        if len(x):
            count += len(x)
            zeros += len(x) - int(np.count_nonzero(x))
            total += float(x.sum())
            squares += found
            low, high = min(low, float(x.min())), max(high, float(x.max()))
    if not count:
        return nan, inf, zeros, math.nan, 0.0, math.nan, math.nan
    return nan, inf, zeros, total / count, math.sqrt(squares), low + 0.0, high + 0.0
