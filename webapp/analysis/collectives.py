"""Which collectives ran, how often, over how many bytes, and how long did a call take?"""

from __future__ import annotations

import pandas as pd
import pyarrow.compute as pc

from lanescope.webapp.analysis.frames import to_frame
from lanescope.webapp.run import Run

COLUMNS = (
    "name", "group", "group_size", "bytes", "ranks", "calls", "total_bytes", "unfinished",
    "call_p50_ns", "call_p99_ns", "call_max_ns",
    "latency_p50_ns", "latency_p99_ns", "latency_max_ns",
)  # fmt: skip

_KEYS = ["name", "group", "group_size", "bytes"]


def collectives(run: Run) -> pd.DataFrame:
    """Calls per operation, process group and size, most bytes first.

    name, group, group_size; bytes (input of one call on one rank; of the output for recv), ranks
    (how many made such calls), calls (of all these ranks), total_bytes = bytes * calls;
    unfinished (calls that never returned); call_*_ns: time in the call itself, which for an
    asynchronous one is only its launch; latency_*_ns: from the start of the call to the completion
    of the operation, of the calls whose completion was seen. Percentiles are linear between
    neighbouring values; NaN where there is no value.
    """
    events = run.events(
        "collective", columns=[*_KEYS, "start_ns", "duration_ns", "complete_ns", "rank"]
    )
    # Subtracted as integers: a column with nulls is float64 in pandas.
    latency = pc.subtract(events["complete_ns"], events["start_ns"])
    frame = to_frame(events.append_column("latency_ns", latency))
    groups = frame.groupby(_KEYS, sort=True)
    table = pd.DataFrame(
        {
            "ranks": groups["rank"].nunique(),
            "calls": groups["rank"].count(),
            "unfinished": groups["rank"].count() - groups["duration_ns"].count(),
        }
    )
    for prefix, column in (("call", "duration_ns"), ("latency", "latency_ns")):
        table[f"{prefix}_p50_ns"] = groups[column].quantile(0.5)
        table[f"{prefix}_p99_ns"] = groups[column].quantile(0.99)
        table[f"{prefix}_max_ns"] = groups[column].max().astype("float64")
    table = table.reset_index()
    table["total_bytes"] = table["bytes"] * table["calls"]
    return table[list(COLUMNS)].sort_values(
        ["total_bytes", "calls"], ascending=False, kind="stable", ignore_index=True
    )
