"""numpy arrays and lists of texts -> Arrow arrays, by way of their buffers.

`pyarrow.array` imports pandas when it is first called, which takes half a second and is of no use
to compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def numbers(
    values: NDArray[Any], kind: pa.DataType, missing: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Integers, floats or truth values as an array of `kind`; null where `missing` is true."""
    valid = None
    if missing is not None and missing.any():
        valid = _bits(~missing)
    if pa.types.is_boolean(kind):
        data = _bits(values)
    else:
        data = pa.py_buffer(np.ascontiguousarray(values, kind.to_pandas_dtype()))
    return pa.Array.from_buffers(kind, len(values), [valid, data])


def texts(values: Sequence[str | None]) -> pa.StringArray:
    """Texts; None is null."""
    encoded = [(value or "").encode("utf-8", "replace") for value in values]
    offsets = np.fromiter(accumulate(map(len, encoded), initial=0), np.int32, len(values) + 1)
    missing = np.array([value is None for value in values], bool)
    valid = _bits(~missing) if missing.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.StringArray.from_buffers(len(values), buffers[1], buffers[2], buffers[0])


def dictionary(codes: NDArray[np.int32], values: Sequence[str]) -> pa.DictionaryArray:
    """Texts by their codes; equal texts share an entry."""
    entries: dict[str, int] = {}
    merged = np.array([entries.setdefault(text, len(entries)) for text in values], np.int32)
    indices = numbers(merged[codes] if len(merged) else codes, pa.int32())
    return pa.DictionaryArray.from_arrays(indices, texts(list(entries)))


def _bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
