"""Converts decimal texts of microseconds to whole nanoseconds, without floats.

Microseconds since 1970 have 16 digits before the point. A float64 resolves a quarter of a
microsecond there, which would make adjacent slices overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import msgspec
import numpy as np
import pyarrow as pa

from ..format.array_types import BoolArray, Int64Array
from ..format.record_kinds import MAX_TIME_NS

RawNumber = bytes | msgspec.Raw
"""A number as bytes of the file."""

MAX_NS = 1 << 61
"""Largest absolute instant or length: sums of two fit into int64."""

_DIGITS = 40
_MAX_WHOLE = 17
"""With three decimals, 19 digits: a number beyond int64 wraps around, but not to one that is
valid."""

_POINT_AND_COMMA = np.frombuffer(b".,", np.uint8) - np.uint8(ord("0"))

_NS = Decimal(1).scaleb(-3)


def column_of(values: Sequence[RawNumber]) -> pa.LargeBinaryArray:
    """Returns pieces of JSON as a binary column."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


def exact_ns(texts: Sequence[RawNumber]) -> tuple[Int64Array, BoolArray]:
    """Converts JSON numbers of microseconds to ns; also returns which are invalid (they are 0)."""
    found = _same_form(texts)
    if found is None:
        try:
            decimals = column_of(texts).cast(pa.large_string()).cast(pa.decimal128(38, 3))
        except (pa.ArrowException, UnicodeDecodeError):
            return _one_by_one(texts)
        halves = np.frombuffer(decimals.buffers()[1], np.int64, 2 * len(texts))
        found, high = halves[::2].copy(), halves[1::2]
        bad = (high != found >> 63) | (np.abs(found) > MAX_NS)
    else:
        bad = np.abs(found) > MAX_NS
    found[bad] = 0
    return found, bad


def _same_form(texts: Sequence[RawNumber]) -> Int64Array | None:
    """Converts numbers of one length, with the point at one place or without, as profilers write.

    Returns ns, which wrap around beyond int64; None for other numbers. It takes a third of the
    time of Arrow's conversion.
    """
    if not texts:
        return None
    length = len(texts[0])
    point = bytes(texts[0]).find(b".")
    point = length if point < 0 else point
    decimals = max(0, length - point - 1)
    joined = b",".join([*texts, b""])
    if not 0 < point < _MAX_WHOLE or decimals > 3 or point == length - 1:
        return None
    if len(joined) != len(texts) * (length + 1):
        return None
    digits = np.frombuffer(joined, np.uint8).reshape(len(texts), -1) - np.uint8(ord("0"))
    others = [length] if point == length else [point, length]
    places = digits[:, others] == _POINT_AND_COMMA[-len(others) :]
    if not places.all() or int((digits > 9).sum()) != places.size:
        return None
    weights = [10 ** (point + 2 - place) for place in range(point)]
    weights += [0, *(10 ** (2 - place) for place in range(decimals)), 0]
    return np.asarray(digits @ np.array(weights[: length + 1], np.int64), np.int64)


def rounded_ns(microseconds: list[float | int | None]) -> tuple[Int64Array, BoolArray, BoolArray]:
    """Returns lengths in ns, which are missing, and which are invalid (negative or too long).

    A float of microseconds is exact to the nanosecond up to 104 days.
    """
    values = np.array(microseconds, np.float64)  # None becomes NaN
    missing = np.isnan(values)
    values = np.where(missing, 0.0, values * 1000)
    bad = (values < 0) | (values > MAX_TIME_NS)
    return np.rint(np.where(bad, 0, values)).astype(np.int64), missing, bad


def _one_by_one(texts: Sequence[RawNumber]) -> tuple[Int64Array, BoolArray]:
    """Does the same for texts with more digits, in quotes, or without a number."""
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
    """Converts one text of microseconds to ns, rounded to nearest; None: not a number."""
    if len(text) > _DIGITS:
        return None
    try:
        value = Decimal(text)
        if not value.is_finite() or abs(value) > MAX_NS // 1000:
            return None
        return int(value.quantize(_NS, ROUND_HALF_EVEN).scaleb(3))
    except (InvalidOperation, ValueError, OverflowError):
        return None
