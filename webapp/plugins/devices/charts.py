"""What each stream does all the time, and why it is idle."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.devices.idle import IDLE_CAUSES
from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import escaped, greatest_rows, share_bars
from lanescope.webapp.ui.colours import Theme

_PARTS = (
    ("busy_ns", "runs kernels", "forward", ""),
    ("idle_host_ns", IDLE_CAUSES["host"], "python", "/"),
    ("idle_communication_ns", IDLE_CAUSES["communication"], "collective", "\\"),
    ("idle_copy_ns", IDLE_CAUSES["copy"], "copy", "x"),
    ("idle_other_stream_ns", IDLE_CAUSES["other_stream"], "other", "."),
    ("idle_start_ns", IDLE_CAUSES["start"], "launch", "-"),
    ("idle_unknown_ns", IDLE_CAUSES["unknown"], "idle", ""),
)
"""Column of the table, words, token and pattern."""


def stream_times(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Returns shares of the time of each stream, from its first kernel to its last:
    `idle.streams`; of many streams, of `busiest_streams`."""
    shown = busiest_streams(table)
    names = [escaped(str(name)) for name in shown["stream"]]
    parts = [part for part in _PARTS if shown[part[0]].any()]
    title = "share of the stream's time, %"
    if len(shown) < len(table):
        title += (
            f" · the {len(shown)} of {units.count(len(table))} streams that run kernels longest"
        )
    return share_bars(names, shown, "window_ns", parts, title, theme)


def busiest_streams(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the MAX_SHARE_BARS streams that run kernels for the longest time."""
    return greatest_rows(table, table["busy_ns"])
