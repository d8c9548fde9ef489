"""Values that were logged along the way, by name: a loss scale, what gradients are clipped to."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.runs.run import Run

_COLUMNS = ["rank", "thread", "time_ns", "step", "name", "value"]


def logged(run: Run, rank: int | None, *names: str, prefix: str | None = None) -> pd.DataFrame:
    """A row per value of a rank, or of all: rank, thread, time_ns, step, name, value.

    Of the series `names`, or of those whose names begin with `prefix`, which is taken off.
    """
    rows = run.events("value", rank, columns=_COLUMNS)
    texts = rows["name"].cast(pa.string())
    if prefix is None:
        return to_frame(rows.filter(pc.is_in(texts, pa.array(names, pa.string()))))
    found = to_frame(rows.filter(pc.starts_with(texts, prefix)))
    return found.assign(name=found["name"].astype("str").str.removeprefix(prefix))


def last_logged(run: Run, rank: int, name: str) -> pd.Series:
    """The last value of each step, by step."""
    return logged(run, rank, name).groupby("step")["value"].last()
