"""How far two runs of one program are apart by chance: what mode tolerance allows beyond a dtype's.

    floor(dtype, step) = TIMES * the greatest relative difference between two baselines, of numbers
                         of that dtype in the steps up to that one

Differences add up over steps, so the floor never falls. Incomparable values do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lanescope.webapp.runs import units
from lanescope.webapp.runs.types import Float64Array, Int64Array

_TIMES = 2.0
"""Two baselines are one sample of their difference; another pair may well be further apart."""


@dataclass(frozen=True, eq=False)
class Floor:
    """The floor of one kind of number (tensors, or norms of gradients)."""

    by_dtype: dict[
        str, tuple[Int64Array, Float64Array]
    ]  # steps, ascending, and the floor from each on

    @classmethod
    def of(cls, dtype: NDArray[np.object_], step: Int64Array, apart: Float64Array) -> Floor:
        """Makes a floor of relative differences (see `closeness.relative_differences`), in any
        order."""
        frame = pd.DataFrame({"dtype": dtype, "step": step, "apart": apart})
        frame = frame[np.isfinite(frame["apart"]) & (frame["apart"] > 0)]
        most = frame.groupby(["dtype", "step"])["apart"].max().reset_index()
        return cls(
            {
                str(name): (
                    rows["step"].to_numpy(np.int64),
                    _TIMES * np.maximum.accumulate(rows["apart"].to_numpy(np.float64)),
                )
                for name, rows in most.groupby("dtype")
            }
        )

    def at(self, dtypes: Sequence[str], codes: Int64Array, step: Int64Array) -> Float64Array:
        """Returns the floor of each number, of a dtype (position in `dtypes`) and a step."""
        found = np.zeros(len(codes))
        for code, dtype in enumerate(dtypes):
            steps, floor = self.by_dtype.get(dtype, (np.empty(0, np.int64), np.empty(0)))
            mine = codes == code
            place = np.searchsorted(steps, step[mine], side="right")
            found[mine] = np.concatenate(([0.0], floor))[place]
        return found

    def words(self) -> str:
        """Returns the floor of each dtype at the last step."""
        floors = (
            f"{dtype} {units.number(floor[-1])}" for dtype, (_, floor) in self.by_dtype.items()
        )
        return ", ".join(floors) or "none"
