"""Decodes TENSOR records into the tensor table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..format.schema import FLOAT64, INT64
from ..journal.journal import (
    TENSOR_FIELDS,
    TENSOR_MORE_FIELDS,
    TENSOR_ORDINAL,
    RecordKind,
    TensorFlag,
)
from .arrow_columns import by_start, codes_of, dictionary, numbers, whole_number
from .reader import Records, take

TENSOR_DTYPE = np.dtype(list(TENSOR_FIELDS))
MORE_DTYPE = np.dtype(list(TENSOR_MORE_FIELDS))

_MAX_INT64 = 2**63 - 1


def tensor_columns(
    records: Records, kinds: NDArray[np.uint8], texts: NDArray[np.object_]
) -> dict[str, Any] | None:
    """Returns the columns of the tensor table, by start; None without any. `texts` are by id.

    A record without its TENSOR_MORE half is left out.
    """
    positions = np.flatnonzero(kinds == RecordKind.TENSOR)
    if not len(positions):
        return None
    rows = take(records, positions).view(TENSOR_DTYPE)
    halves = (rows["position"] & TensorFlag.MORE) != 0
    following = np.minimum(positions + 1, len(records) - 1)
    whole = ~halves | (kinds[following] == RecordKind.TENSOR_MORE)
    more = np.zeros(len(rows), MORE_DTYPE)
    more[halves & whole] = take(records, following[halves & whole]).view(MORE_DTYPE)
    order = by_start(rows["start"], rows["depth"].astype(np.uint16))
    order = order[whole[order]]
    rows, more = rows[order], more[order]
    shapes, dtypes, devices, numel = _signatures(rows["signature"], texts)
    flags = rows["position"]
    return {
        "start_ns": rows["start"],
        "depth": rows["depth"],
        "position": _positions(flags),
        "shape": shapes,
        "dtype": dtypes,
        "device": devices,
        "numel": numel,
        **{name: _moment(rows[field]) for name, field in _MOMENTS.items()},
        "nan": more["nan"],
        "inf": more["inf"],
        "zeros": rows["zeros"],
        "hash": rows["hash"],
        "expected": numbers(more["expected"], INT64, more["expects"] == 0),
        "unset": more["unset"] != 0,
        "finite_inputs": numbers(
            (flags & TensorFlag.FINITE) != 0, pa.bool_(), (flags & TensorFlag.KNOWN) == 0
        ),
    }


_MOMENTS = {"mean": "mean", "l2": "l2", "min": "low", "max": "high"}


def _moment(values: NDArray[np.float64]) -> pa.Array:
    return numbers(values, FLOAT64, np.isnan(values))


def _positions(flags: NDArray[np.uint16]) -> pa.DictionaryArray:
    kept = flags & (TENSOR_ORDINAL | TensorFlag.RESULT | TensorFlag.FOUND)
    present, codes = np.unique(kept, return_inverse=True)
    return dictionary(codes.astype(np.int32), [_position(int(p)) for p in present])


def _position(flags: int) -> str:
    kind = "out" if flags & TensorFlag.RESULT else "read" if flags & TensorFlag.FOUND else "in"
    return f"{kind}{flags & TENSOR_ORDINAL}"


def _signatures(
    ids: NDArray[np.uint32], texts: NDArray[np.object_]
) -> tuple[pa.Array, pa.Array, pa.Array, NDArray[np.int64]]:
    """Returns shape, dtype, device and number of elements."""
    codes, present = codes_of(ids, len(texts))
    parts = [[*texts[i].split("\t"), "", "", ""][:3] for i in present]
    counts = [_numel(p[0]) for p in parts]
    columns = [dictionary(codes, [p[i] for p in parts]) for i in range(3)]
    return columns[0], columns[1], columns[2], np.array(counts, np.int64)[codes]


def _numel(shape: str) -> int:
    """Returns the elements of a shape like `[4, 8]`; 0 for another text."""
    if not shape.startswith("["):
        return 0
    sizes = [
        whole_number(size.strip(), _MAX_INT64) for size in shape.strip("[]").split(",") if size
    ]
    found = math.prod(size or 0 for size in sizes)
    return found if found <= _MAX_INT64 else 0
