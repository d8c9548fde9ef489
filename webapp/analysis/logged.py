"""Values that were logged along the way, by name: a loss scale, what gradients are clipped to."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.frames import to_frame
from lanescope.webapp.run import Run


def logged(run: Run, rank: int, name: str) -> pd.DataFrame:
    """A row per value of a rank: name, time_ns, step, value."""
    rows = run.events("value", rank, columns=["name", "time_ns", "step", "value"])
    return to_frame(rows.filter(pc.equal(rows["name"].cast(pa.string()), name)))


def last_logged(run: Run, rank: int, name: str) -> pd.Series:
    """The last value of each step, by step."""
    return logged(run, rank, name).groupby("step")["value"].last()
