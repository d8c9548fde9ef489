"""Decimal texts of microseconds as whole nanoseconds, without a float in between.

An instant since 1970 in microseconds has 16 digits before the point; a float64 holds a quarter of
a microsecond there, which makes slices overlap that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..format.record_kinds import FARTHEST_NS

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
Written = bytes | msgspec.Raw
"""A value as it stands in a file."""

MOST_NS = 1 << 61
"""Largest instant or length, in either direction: sums of two stay within int64."""

_DIGITS = 40
_NS = Decimal(1).scaleb(-3)


def column_of(values: Sequence[Written]) -> pa.LargeBinaryArray:
    """Pieces of JSON as a column."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


def exact_ns(texts: Sequence[Written]) -> tuple[I64, Flags]:
    """Numbers of microseconds, as they stand in JSON, in ns; and which are none (these are 0)."""
    try:
        decimals = column_of(texts).cast(pa.large_string()).cast(pa.decimal128(38, 3))
    except (pa.ArrowException, UnicodeDecodeError):
        return _one_by_one(texts)
    halves = np.frombuffer(decimals.buffers()[1], np.int64, 2 * len(texts))
    low, high = halves[::2].copy(), halves[1::2]
    bad = (high != low >> 63) | (np.abs(low) > MOST_NS)
    low[bad] = 0
    return low, bad


def rounded_ns(microseconds: list[float | int | None]) -> tuple[I64, Flags, Flags]:
    """Lengths in ns; which are not given; which cannot be (negative, or too long to be true).

    A length comes as a float: up to 104 days that is exact to the nanosecond.
    """
    values = np.array(microseconds, np.float64)  # None becomes NaN
    missing = np.isnan(values)
    values = np.where(missing, 0.0, values * 1000)
    bad = (values < 0) | (values > FARTHEST_NS)
    return np.rint(np.where(bad, 0, values)).astype(np.int64), missing, bad


def _one_by_one(texts: Sequence[Written]) -> tuple[I64, Flags]:
    """The same for texts among which some have more digits, are quoted, or are no numbers."""
    found = np.zeros(len(texts), np.int64)
    bad = np.zeros(len(texts), bool)
    for position, text in enumerate(texts):
        value = decimal_ns(bytes(text).strip(b'"').decode("ascii", "replace"))
        if value is None:
            bad[position] = True
        else:
            found[position] = value
    return found, bad


def decimal_ns(text: str) -> int | None:
    """One text of microseconds in ns, rounded to the nearest; None where it is none."""
    if len(text) > _DIGITS:
        return None
    try:
        value = Decimal(text)
        if not value.is_finite() or abs(value) > MOST_NS // 1000:
            return None
        return int(value.quantize(_NS, ROUND_HALF_EVEN).scaleb(3))
    except (InvalidOperation, ValueError, OverflowError):
        return None
