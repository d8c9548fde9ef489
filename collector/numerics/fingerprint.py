"""Defines the fingerprint of a tensor, eight numbers of its contents, in torch.

It runs on the tensor's device and never waits for it. The observer has the same in C++ for tensors
in host memory (`engines/observer/numerics/fingerprint_kernel.cpp`); tests compare both with numpy.

**Hash.** The elements in logical (row-major) order, whatever the strides, give unsigned 32-bit
words: one of an element of up to 4 bytes (zero-extended), two of 8 bytes and four of 16, the low
one first. Of the k-th word u, counted from 0,

    v(k) = u xor (u >> 16)
    w(k) = (splitmix64(k mod 1024) | 1) * (splitmix64(1024 + k div 1024) | 1)
    hash = sum over k of v(k) * w(k), modulo 2^64, as a signed number

An integer sum has no order, so every device and every number of threads gives the same hash. The
weights are odd and the words shorter than 64 bits, so a single word that changes always shows; two
tensors that differ elsewise, by an exchange say, agree with a chance of about 2^-48 at most. The
shift takes sign bits to the middle of the word: without it they would meet few bits of the weights.
A tensor whose bits are all 0 has the hash 0, as has an empty one.

**Statistics** are in float64, of the elements converted to it; a complex tensor counts as its real
and imaginary parts. `nan` and `inf` are counts; of the elements that are neither, `zeros` counts
those equal to 0, and there are the mean, the L2 norm, the smallest and the largest (-0.0 as 0.0).
Without any such element mean, min and max are NaN. The norm of float64 overflows beyond 1e154.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

BLOCK = 1024
"""Words that share a weight of the second kind."""

_CHUNK = BLOCK * 4096  # words per batch: bounds the memory of intermediate results
_BITS = {1: (torch.uint8, 0xFF), 2: (torch.int16, 0xFFFF), 4: (torch.int32, 0xFFFFFFFF)}


class Fingerprint(NamedTuple):
    """Hash and statistics of a tensor, as tensors on its device."""

    counts: torch.Tensor  # int64: hash, nan, inf, zeros
    moments: torch.Tensor  # float64: mean, L2 norm, min, max


def can_read(tensor: torch.Tensor) -> bool:
    """Returns True if the tensor has its elements in memory, in a dtype with a fingerprint."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor._is_zerotensor()
        and tensor.dtype not in _PACKED
    )


_PACKED = tuple(
    getattr(torch, name)
    for name in ("float4_e2m1fn_x2", "bits1x8", "bits2x4", "bits4x2")
    if hasattr(torch, name)
)
"""Dtypes with several elements per byte: the shape does not count them."""


@torch.no_grad()
def fingerprint(tensor: torch.Tensor) -> Fingerprint:
    """Computes the fingerprint of a tensor that `can_read`, without waiting for its device."""
    flat = logical_order(tensor)
    values = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    nan = inf = zeros = total = squares = _zero(values, torch.float64)
    low = torch.full((), torch.inf, dtype=torch.float64, device=values.device)
    high = -low
    for chunk in torch.split(values, _CHUNK):
        numbers = chunk.to(torch.float64)
        finite = numbers.isfinite()
        known = numbers.where(finite, 0.0)
        nan = nan + numbers.isnan().sum()
        inf = inf + numbers.isinf().sum()
        zeros = zeros + (numbers == 0).sum()
        total = total + known.sum()
        squares = squares + known.square().sum()
        if len(numbers):
            low = torch.minimum(low, numbers.where(finite, torch.inf).amin())
            high = torch.maximum(high, numbers.where(finite, -torch.inf).amax())
    count = values.numel() - nan - inf
    counts = torch.stack([_hash(flat), nan.long(), inf.long(), zeros.long()])
    empty = count == 0
    moments = torch.stack(
        [
            total / count,
            squares.sqrt(),
            (low + 0.0).where(~empty, torch.nan),
            (high + 0.0).where(~empty, torch.nan),
        ]
    )
    return Fingerprint(counts, moments)


@torch.no_grad()
def hash_of(tensor: torch.Tensor) -> torch.Tensor:
    """Computes the hash of a tensor that `can_read`: int64, 0-dimensional, on its device."""
    return _hash(logical_order(tensor))


def logical_order(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in logical order, 1-dimensional, conjugated and negated as needed."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _hash(flat: torch.Tensor) -> torch.Tensor:
    view, mask = _BITS[min(flat.element_size(), 4)]
    words = flat.view(view) if flat.numel() else flat.new_empty(0, dtype=view)
    inner = _weights(0, BLOCK, flat.device)
    result = _zero(flat, torch.int64)
    for position, chunk in enumerate(torch.split(words, _CHUNK)):
        bits = chunk.to(torch.int64) & mask
        bits ^= bits >> 16
        blocks = -(-len(bits) // BLOCK)
        padded = torch.nn.functional.pad(bits, (0, blocks * BLOCK - len(bits)))
        sums = (padded.view(blocks, BLOCK) * inner).sum(1)
        first = BLOCK + position * (_CHUNK // BLOCK)
        result = result + (sums * _weights(first, blocks, flat.device)).sum()
    return result


def _weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Returns splitmix64(k) | 1 for `count` k from `first` on, int64."""
    z = (torch.arange(first + 1, first + 1 + count, device=device)) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return (z ^ _shifted(z, 31)) | 1


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # as if it had no sign


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _zero(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros((), dtype=dtype, device=like.device)
