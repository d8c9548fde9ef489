"""Waits between the stages of a pipeline, in traces that hold no sends and receives.

A slice names its microbatch: in its arguments (`microbatch`, `mb`), or by the number in its name
(`F3`, `backward 3`). A stage that does nothing before such a slice waited for the slice of the same
step and microbatch of another stage that ended last in the gap.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import ends_ns
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array

_IN_ARGUMENTS = (
    r'(?i)"(?:micro_?batch|mb)(?:_?(?:id|idx|index|number))?"\s*:\s*"?(?P<number>\d{1,9})'
)
_IN_NAME = r"(?i)^(?:f|fwd|forward|b|bwd|backward)[-_ #]{0,2}(?P<number>\d{1,9})$"

PIPELINE_COLUMNS = ["start_ns", "end_ns", "waker", "woken_ns", "microbatch"]


@lru_cache(maxsize=4)
def stage_waits(run: Run, lanes: tuple[tuple[int, str], ...]) -> Mapping[int, pd.DataFrame]:
    """Returns the waits of each rank for other stages, by start; `lanes` are one thread of each
    rank.

    Columns: start_ns and end_ns of the gap, waker (rank of the stage that was waited for), woken_ns
    (when its slice ended), microbatch. Times in ns from the start of the run. Callers must not
    change them.
    """
    every = pd.concat([_slices(run, *lane) for lane in lanes], ignore_index=True)
    known = every[every["microbatch"] >= 0]
    ended = known.sort_values("end_ns", kind="stable")
    ended = ended[["end_ns", "rank", "step", "microbatch"]].rename(columns={"rank": "waker"})
    gaps = known[known["start_ns"] > known["idle_since"]].sort_values("start_ns", kind="stable")
    found = pd.merge_asof(
        gaps[["start_ns", "idle_since", "rank", "step", "microbatch"]],
        ended,
        left_on="start_ns",
        right_on="end_ns",
        by=["step", "microbatch"],
    )
    # Slices of the stage itself have ended before the gap.
    found = found[found["end_ns"] > found["idle_since"]]
    waits = pd.DataFrame(
        {
            "start_ns": found["idle_since"],
            "end_ns": found["start_ns"],
            "waker": found["waker"],
            "woken_ns": found["end_ns"],
            "microbatch": found["microbatch"],
        },
        dtype="int64",
    )
    return {rank: waits[found["rank"] == rank].reset_index(drop=True) for rank, _ in lanes}


def _slices(run: Run, rank: int, thread: str) -> pd.DataFrame:
    """The outermost slices of a thread by start, and since when the thread was idle before each."""
    columns = ["start_ns", "duration_ns", "name", "step", "depth", "args"]
    rows = run.events("op", rank, thread, columns)
    rows = rows.filter(pc.equal(rows["depth"], 0)).sort_by("start_ns")
    ends = ends_ns(rows, run)
    latest = np.maximum.accumulate(ends) if len(ends) else ends
    start = rows["start_ns"].to_numpy()
    return pd.DataFrame(
        {
            "rank": rank,
            "step": rows["step"].to_numpy(),
            "microbatch": _microbatches(rows),
            "start_ns": start,
            "end_ns": ends,
            "idle_since": np.concatenate([np.zeros(len(start[:1]), np.int64), latest[:-1]]),
        }
    )


def _microbatches(rows: pa.Table) -> Int64Array:
    """Returns the microbatch of each slice; -1: none."""
    found = [
        pc.struct_field(pc.extract_regex(rows[name].cast(pa.string()), pattern), "number")
        for name, pattern in (("args", _IN_ARGUMENTS), ("name", _IN_NAME))
    ]
    return np.asarray(pc.fill_null(pc.coalesce(*found).cast(pa.int64()), -1))
