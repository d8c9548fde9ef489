"""Decimal texts of microseconds as whole nanoseconds, without a float in between.

An instant since 1970 in microseconds has 16 digits before the point; a float64 holds a quarter of
a microsecond there, which makes slices overlap that do not.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

MOST_NS = 1 << 61
"""Largest instant or length, in either direction: sums of two stay within int64."""

_DIGITS = 40
_NS = Decimal(1).scaleb(-3)


def exact_ns(texts: list[bytes]) -> tuple[I64, Flags]:
    """Numbers of microseconds, as they stand in JSON, in ns; and which are none (these are 0)."""
    offsets = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
    column = pa.LargeStringArray.from_buffers(
        len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))
    )
    try:
        decimals = column.cast(pa.decimal128(38, 3))
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
    values = np.array([np.nan if one is None else one for one in microseconds], np.float64)
    missing = np.isnan(values)
    values = np.where(missing, 0.0, values * 1000)
    bad = (values < 0) | (values > MOST_NS)
    return np.rint(np.where(bad, 0, values)).astype(np.int64), missing, bad


def _one_by_one(texts: list[bytes]) -> tuple[I64, Flags]:
    """The same for texts among which some have more digits, are quoted, or are no numbers."""
    found = np.zeros(len(texts), np.int64)
    bad = np.zeros(len(texts), bool)
    for position, text in enumerate(texts):
        value = decimal_ns(text.strip(b'"').decode("ascii", "replace"))
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
