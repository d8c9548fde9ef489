"""Compares two numbers, and the statistics of two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lanescope.webapp.runs.types import BoolArray, Float64Array

Mode = Literal["bitwise", "tolerance", "simple"]

MODES: tuple[Mode, ...] = get_args(Mode)

RELATIVE = {
    "float64": 1e-7,
    "float32": 1.3e-6,
    "bfloat16": 1.6e-2,
    "float16": 1e-3,
    "complex128": 1e-7,
    "complex64": 1.3e-6,
}
"""Relative tolerance per dtype of mode tolerance: the defaults of torch.testing.assert_close."""

COARSEST = max(RELATIVE.values())  # for a dtype not listed: the 8-bit floats are coarser than all

SIMPLE = 1e-4
"""Absolute tolerance of mode simple."""

IDENTITY = ("hash", "shape", "dtype")
"""Columns of the tensor table that are equal of identical tensors."""

_Columns = dict[str, NDArray[Any]]


def relative_of(dtype: str) -> float:
    """Returns relative tolerance of a dtype; whole numbers and truth values have none."""
    return 0.0 if dtype.startswith(("int", "uint", "bool")) else RELATIVE.get(dtype, COARSEST)


def tensor_states(
    base: _Columns, run: _Columns, dtypes: Sequence[str], mode: Mode, least: float = 0.0
) -> Any:
    """Returns 0 identical, 1 within tolerance, 2 different, for each pair of tensors.

    The columns are those of the tensor table, shape and dtype as numbers of equal meaning on both
    sides, the latter positions in `dtypes`. Identical are shape, dtype and hash. Else shape and the
    numbers of NaN and of infinite elements must be equal and
    - tolerance: the L2 norms differ by at most the coarser dtype's relative tolerance times the
      larger norm, the means by at most that times the larger root mean square; of numbers of
      floating point the tolerance is at least `least`;
    - simple: the means differ by at most `SIMPLE`.
    No mean (no finite element) equals no mean.
    """
    same = np.ones(len(base["hash"]), bool)
    for name in IDENTITY:
        same &= base[name] == run[name]
    state = np.where(same, 0, 2).astype(np.int8)
    rows = np.flatnonzero(~same)
    if mode == "bitwise" or not len(rows):
        return state
    close = np.ones(len(rows), bool)
    for name in ("shape", "nan", "inf"):
        close &= base[name][rows] == run[name][rows]
    means = [_number(side["mean"][rows]) for side in (base, run)]
    norms = [_number(side["l2"][rows]) for side in (base, run)]
    if mode == "simple":
        allowed: Any = SIMPLE
    else:
        table = np.array([relative_of(dtype) for dtype in dtypes])
        table[table > 0] = table[table > 0].clip(min=least)
        relative = np.maximum(table[base["dtype"][rows]], table[run["dtype"][rows]])
        norm = np.fmax(norms[0], norms[1])
        close &= _near(norms[0], norms[1], relative * norm)
        allowed = relative * norm / np.sqrt(base["numel"][rows].clip(min=1))
    close &= _near(means[0], means[1], allowed)
    state[rows[close]] = 1
    return state


def relative_differences(base: _Columns, run: _Columns) -> Float64Array:
    """Returns how far the statistics of each pair of tensors are apart, as mode tolerance measures
    it.

        max(|l2 - l2'| / max(l2, l2'), |mean - mean'| / root mean square of the larger norm)

    0 where both are equal, infinite where the shape or the number of NaN or infinite elements is
    another, or one side alone has no finite element.
    """
    means = [_number(side["mean"]) for side in (base, run)]
    norms = [_number(side["l2"]) for side in (base, run)]
    norm = np.fmax(*norms)
    found = np.zeros(len(norm))
    for (one, other), scale in (
        (norms, norm),
        (means, norm / np.sqrt(base["numel"].clip(min=1))),
    ):
        with np.errstate(invalid="ignore", divide="ignore"):
            away = np.abs(one - other) / scale
        away[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        found = np.fmax(found, np.where(np.isnan(away), np.inf, away))
    for name in ("shape", "nan", "inf"):
        found[base[name] != run[name]] = np.inf
    return found


def _number(column: NDArray[Any]) -> Float64Array:
    return column.astype(np.float64)


def _near(base: Float64Array, run: Float64Array, allowed: Any) -> BoolArray:
    with np.errstate(invalid="ignore"):
        near = np.isfinite(base) & np.isfinite(run) & (np.abs(run - base) <= allowed)
    result: BoolArray = near | (base == run) | (np.isnan(base) & np.isnan(run))
    return result
