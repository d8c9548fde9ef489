"""The arrays of an index as they travel in a bundle: a fifth of their size, and quick to unfold.

Ascending columns are stored as differences; bytes are in planes (`byte_planes.py`); zstd
does the rest. Numbers wrap around, so nothing overflows and everything comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lanescope.webapp.runs.bundle import Bundle
from lanescope.webapp.runs.types import UInt8Array

ASCENDING = frozenset(
    ("start", "fence", "source", "time", "row_begin", "row_end", "row_made", "made_key", "made_end")
)
"""Arrays that a bundle holds by their differences; `end` by how far it is from `start`."""

_LEVEL = 3


def encoded_array(values: npt.NDArray[Any], *, ascends: bool) -> bytes:
    """Returns the bytes of an array; `ascends` where its differences say less than it does."""
    numbers = values if not ascends else np.diff(values, prepend=values.dtype.type(0))
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    packed: bytes = codec.compress(planes_of(numbers), asbytes=True)
    return packed


def decoded_array(data: pa.Buffer, dtype: str, count: int, *, ascends: bool) -> npt.NDArray[Any]:
    """Returns `count` numbers. ValueError or OSError where the bytes are not those of so many."""
    kind = np.dtype(dtype)
    size = count * kind.itemsize
    if not count:
        return np.empty(0, kind)
    plain = pa.Codec("zstd").decompress(data, decompressed_size=size)
    if plain.size != size:
        raise ValueError(f"{plain.size} bytes where {size} were expected")
    planes = np.frombuffer(plain, np.uint8).reshape(kind.itemsize, count)
    numbers = _numbers_of(planes, kind)
    return numbers if not ascends else np.cumsum(numbers, dtype=kind)


def arrays_in(
    bundle: Bundle,
    folder: str,
    dtypes: Mapping[str, str],
    counts: Mapping[str, Any] | None,
    most: int,
) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays in a folder of a bundle; `counts` = numbers in each, None: they are not
    packed.

    Plain ones are mapped. ValueError, OSError, KeyError or TypeError where they are not what
    `counts` says, or would take more than `most` bytes.
    """
    buffers = {name: bundle.buffer(f"{folder}/{name}") for name in dtypes}
    if counts is None:
        return {
            name: np.frombuffer(buffer, dtypes[name]) if buffer.size else np.empty(0, dtypes[name])
            for name, buffer in buffers.items()
        }
    sizes = {name: int(counts[name]) for name in dtypes}
    total = sum(sizes[name] * np.dtype(dtype).itemsize for name, dtype in dtypes.items())
    if min(sizes.values()) < 0 or total > most or sizes["start"] != sizes["end"]:
        raise ValueError(f"an index of {total} bytes, expected at most {most}")
    arrays = {
        name: decoded_array(buffer, dtypes[name], sizes[name], ascends=name in ASCENDING)
        for name, buffer in buffers.items()
    }
    arrays["end"] = arrays["start"] + arrays["end"]
    return arrays


def packed_pieces(
    arrays: Mapping[str, npt.NDArray[Any]], dtypes: Mapping[str, str], *, plain: bool
) -> Iterator[tuple[str, bytes | memoryview]]:
    """Yields name and bytes of each array, as `arrays_in` reads them."""
    for name, dtype in dtypes.items():
        values = np.ascontiguousarray(arrays[name], dtype)
        if plain:
            yield name, values.data.cast("B")
            continue
        numbers = values - arrays["start"] if name == "end" else values
        yield name, encoded_array(numbers, ascends=name in ASCENDING)


def planes_of(values: npt.NDArray[Any]) -> UInt8Array:
    """Returns the planes of some numbers, one a row, the lowest bytes first."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    rows = np.ascontiguousarray(little).view(np.uint8).reshape(-1, values.itemsize)
    return np.ascontiguousarray(rows.T)


def _numbers_of(planes: UInt8Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns the numbers again. `planes` has a row for each byte of `dtype`."""
    kind = np.dtype(dtype).newbyteorder("<")
    return np.ascontiguousarray(planes.T).view(kind).reshape(planes.shape[1])
