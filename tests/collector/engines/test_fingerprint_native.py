"""The observer's fingerprints against the definition: bits, counts and extremes equal."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from lanescope.collector.engines.native_library import Library
from lanescope.collector.numerics import host_fingerprint
from lanescope.collector.numerics.fingerprint import fingerprint
from tests.collector.numerics.test_fingerprint import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    SMALL_FLOATS,
    example,
)


class Native(ctypes.Structure):
    _fields_ = (
        ("hash", ctypes.c_uint64),
        ("nan", ctypes.c_int64),
        ("inf", ctypes.c_int64),
        ("zeros", ctypes.c_int64),
        ("mean", ctypes.c_double),
        ("l2", ctypes.c_double),
        ("low", ctypes.c_double),
        ("high", ctypes.c_double),
    )


class Found(NamedTuple):
    counts: list[int]
    moments: list[float]


def read(library: Library, tensor: torch.Tensor) -> Found | None:
    into = Native()
    if not library.fingerprint(tensor._cdata, ctypes.byref(into)):
        return None
    signed = into.hash - 2**64 if into.hash >= 2**63 else into.hash
    return Found(
        [signed, into.nan, into.inf, into.zeros], [into.mean, into.l2, into.low, into.high]
    )


@pytest.fixture(scope="module")
def library(native: Path) -> Iterator[Library]:
    library = Library(native)
    yield library
    library.choose_kernel(LAST)


def check(library: Library, tensor: torch.Tensor) -> None:
    """On every kernel that this processor runs; all of them with the same bits."""
    kernels = library.choose_kernel(LAST)
    seen = []
    for kernel in range(kernels):
        library.choose_kernel(kernel)
        seen.append(repr(check_one(library, tensor)))
    assert seen == seen[:1] * kernels


LAST = 1000
"""More than there are: the kernel that is used by itself."""


def check_one(library: Library, tensor: torch.Tensor) -> Found:
    expected, found = fingerprint(tensor), read(library, tensor)
    assert found is not None
    assert found.counts == expected.counts.tolist()
    mean, l2, low, high = expected.moments.tolist()
    assert found.moments[0] == pytest.approx(mean, rel=1e-12, abs=1e-12, nan_ok=True)
    assert found.moments[1] == pytest.approx(l2, rel=1e-12)
    assert repr(found.moments[2:]) == repr([low, high])
    assert (
        library.reader.hash_of(tensor) == host_fingerprint.host_hash_of(tensor) == found.counts[0]
    )
    again = read(library, tensor)
    assert repr(again) == repr(found)  # the same input, the same bits
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*FLOATS, *SMALL_FLOATS, *INTEGERS, *COMPLEX], ids=str)
def test_types_and_layouts(library: Library, dtype: torch.dtype, layout: str) -> None:
    check(library, LAYOUTS[layout](example(dtype)))


def test_lengths_around_lanes_and_blocks(library: Library) -> None:
    whole = torch.randn(5000, generator=torch.Generator().manual_seed(2))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8):
        values = whole.abs().mul(50).to(dtype)
        for length in (*range(1, 35), 511, 512, 513, 1023, 1024, 1025, 4097):
            check(library, values[:length])
    check(library, whole.view(50, 100).t())
    check(library, whole.view(10, 5, 100).permute(2, 0, 1)[3:, 1::2])
    check(library, torch.arange(70000, dtype=torch.int32).view(70, 1000).t())


def test_layouts_whose_rows_are_read_together(library: Library) -> None:
    """Long and short rows, more than fit a line, whole blocks and not, within outer dimensions."""
    whole = torch.randn(2, 7, 9, 75, generator=torch.Generator().manual_seed(2)).mul(50)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.complex128):
        values = whole.abs().to(dtype)
        check(library, values.permute(0, 3, 1, 2))  # as channels_last
        check(library, values.permute(3, 2, 1, 0))
        check(library, values.permute(0, 3, 1, 2)[:, 1:70:2])
        check(library, values.view(-1)[:9000].view(3000, 3).t())
        check(library, values.view(-1)[:9000].view(3, 3000).t())
        check(library, values.view(-1)[:9000].view(3, 3000).t().expand(2, -1, -1))
    long = torch.arange(3 * 150_001, dtype=torch.int32).view(150_001, 3).t()  # too long for two
    check(library, long)
    assert read(library, long) == read(library, long.contiguous())


def test_numbers_that_double_precision_rounds(library: Library) -> None:
    edges = [2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**62 + 2**8 + 1, -1, 0, 2**32 - 1]
    check(library, torch.tensor(edges * 3, dtype=torch.int64))
    check(library, torch.tensor(edges * 3, dtype=torch.int64).view(torch.uint64))
    check(library, torch.tensor(edges * 3, dtype=torch.int64).view(torch.uint32))
    check(library, torch.tensor(edges * 3, dtype=torch.int64).view(torch.int32))


def test_every_half(library: Library) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        check(library, bits.view(dtype))


def test_special_numbers(library: Library) -> None:
    for values in ([math.nan] * 20, [math.inf, -math.inf] * 9, [-0.0] * 17, [1e308] * 9):
        check(library, torch.tensor(values, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_it_cannot_read(library: Library) -> None:
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    for tensor in (
        torch.eye(3).to_sparse(),
        nested,
        torch.empty(3, device="meta"),
        freed,
        torch.ones(2, dtype=torch.complex64).conj(),
    ):
        assert read(library, tensor) is None


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_the_two_halves_of_a_complex_number_are_one_word(library: Library) -> None:
    check(library, torch.arange(2051).sub(7).to(torch.complex64).mul(1 + 2j).to(torch.complex32))
