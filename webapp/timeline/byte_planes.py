"""Numbers as planes of bytes: all lowest bytes, then all next higher ones.

Numbers that are alike in their high bytes, as instants and lengths are, compress to a fraction so:
what is 0 throughout stands together and costs nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Planes = npt.NDArray[np.uint8]


def planes_of(values: npt.NDArray[Any]) -> Planes:
    """The planes of some numbers, one a row, the lowest bytes first."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    rows = np.ascontiguousarray(little).view(np.uint8).reshape(-1, values.itemsize)
    return np.ascontiguousarray(rows.T)


def numbers_of(planes: Planes, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The numbers again. `planes` has a row for each byte of `dtype`."""
    kind = np.dtype(dtype).newbyteorder("<")
    return np.ascontiguousarray(planes.T).view(kind).reshape(planes.shape[1])
