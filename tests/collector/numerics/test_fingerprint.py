"""The fingerprint's definition, against numpy; the differences that its hash shows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from lanescope.collector.numerics.fingerprint import can_read, fingerprint, hash_of
from lanescope.collector.numerics.host_fingerprint import numbers_of
from tests.support.fingerprint_reference import hash_of as hash_by_definition
from tests.support.fingerprint_reference import reference

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SMALL_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
COMPLEX = (torch.complex64, torch.complex128)

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t[::2, 1::3],
    "offset": lambda t: t.view(-1)[5:],
    "expanded": lambda t: t[:1].expand(4, *t.shape[1:]),
    "empty": lambda t: t[:0],
    "no dimension": lambda t: t[1, 2],
    "one block and one": lambda t: t.reshape(-1)[:1025],
}


def example(dtype: torch.dtype) -> torch.Tensor:
    """[60, 70]: more than one block, with the special numbers of the type."""
    generator = torch.Generator().manual_seed(3)
    tensor = torch.randn(60, 70, generator=generator)
    if dtype in INTEGERS:
        tensor = (tensor * 40).round().abs() if not dtype.is_signed else (tensor * 40).round()
        return tensor.to(dtype)
    if dtype.is_complex:
        return torch.complex(tensor, tensor.flip(0)).to(dtype)
    tensor[0, :4] = torch.tensor([math.nan, math.inf, -math.inf, -0.0])
    tensor[3] = 0.0
    return tensor.to(dtype)


def check(tensor: torch.Tensor) -> None:
    expected = reference(tensor)
    found = fingerprint(tensor)
    assert found.counts.tolist() == [expected.hash, expected.nan, expected.inf, expected.zeros]
    mean, l2, low, high = found.moments.tolist()
    assert mean == pytest.approx(expected.mean, rel=1e-12, abs=1e-12, nan_ok=True)
    assert l2 == pytest.approx(expected.l2, rel=1e-12)
    assert repr([low, high]) == repr([expected.min, expected.max])
    assert int(hash_of(tensor)) == expected.hash
    by_numpy = numbers_of(tensor)
    assert by_numpy[:4] == expected[:4]
    assert by_numpy.mean == pytest.approx(mean, rel=1e-12, abs=1e-12, nan_ok=True)
    assert by_numpy.l2 == pytest.approx(l2, rel=1e-12)
    assert repr([by_numpy.low, by_numpy.high]) == repr([low, high])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, *SMALL_FLOATS, *INTEGERS, *COMPLEX], ids=str)
def test_types_and_layouts(dtype: torch.dtype, layout: str) -> None:
    check(LAYOUTS[layout](example(dtype)))


def test_special_numbers() -> None:
    for values in ([], [math.nan], [math.inf, -math.inf], [-0.0], [0.0, -0.0], [1e38, -1e38]):
        check(torch.tensor(values, dtype=torch.float32))
    check(torch.full((3,), 60000.0, dtype=torch.float16))  # their sum exceeds float16
    check(torch.tensor([1 + 2j, math.nan]).conj())


@pytest.mark.slow
def test_more_than_a_chunk_at_once() -> None:
    length = 1024 * 4096 + 7
    tensor = torch.zeros(length, dtype=torch.uint8)
    tensor[[0, 1023, 1024, 1024 * 4096 - 1, 1024 * 4096, length - 1]] = 1
    parts = torch.zeros(length, dtype=torch.uint8)
    total = 0
    for position in tensor.nonzero().view(-1).tolist():
        parts.zero_()[position] = 1
        total += int(hash_of(parts))
        assert numbers_of(parts).hash == int(hash_of(parts))
    assert int(hash_of(tensor)) == (total + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_hash_shows_any_difference(dtype: torch.dtype) -> None:
    """A flipped bit, exchanged elements, signs, zeros, NaNs of other bits: in any element."""
    base = torch.randn(3, 700, generator=torch.Generator().manual_seed(1)).to(dtype)
    known = int(hash_of(base))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[base.element_size()]
    seen = {known}
    for place in (0, 1, 699, 1023, 1024, 2099):
        for bit in range(base.element_size() * 8):
            changed = base.clone()
            mask = 1 << bit
            top = bit == base.element_size() * 8 - 1
            changed.view(bits).view(-1)[place] ^= -mask if top else mask
            seen.add(int(hash_of(changed)))
    assert len(seen) == 1 + 6 * base.element_size() * 8
    assert int(hash_of(base.flip(1))) != known
    assert int(hash_of(-base)) != known
    exchanged = base.clone().view(-1)
    exchanged[[4, 5]] = exchanged[[5, 4]]
    assert int(hash_of(exchanged)) != known
    zeros = torch.zeros(2, 1024, dtype=dtype)
    assert int(hash_of(zeros)) == 0
    assert int(hash_of(-zeros)) != 0
    pair = zeros.clone()
    pair[0, 3], pair[1, 9] = -0.0, -0.0  # two signs, which must not cancel
    assert int(hash_of(pair)) != 0


def test_the_hash_is_the_definition_s() -> None:
    """Written down once, so that hashes of older runs keep their meaning."""
    assert hash_by_definition(torch.ones(3)) == int(hash_of(torch.ones(3)))
    assert int(hash_of(torch.arange(2000, dtype=torch.float32))) == KNOWN


KNOWN = -2389109316464957580


def test_it_does_not_disturb() -> None:
    """No random number is drawn, no version moves, no graph is made."""
    tensor = torch.randn(4, 5, requires_grad=True)
    state, version = torch.get_rng_state(), tensor._version
    found = fingerprint(tensor.t())
    assert torch.equal(torch.get_rng_state(), state)
    assert tensor._version == version
    assert not found.moments.requires_grad


def test_what_it_cannot_read() -> None:
    assert can_read(torch.ones(2, 3).t())
    for tensor in (
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    ):
        assert not can_read(tensor)
