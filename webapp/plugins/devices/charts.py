"""What each stream does all the time, and why it is idle."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.devices.idle import IDLE_CAUSES
from lanescope.webapp.ui.charts import escaped, share_bars
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
    `idle.streams`."""
    names = [escaped(str(name)) for name in table["stream"]]
    parts = [part for part in _PARTS if table[part[0]].any()]
    return share_bars(names, table, "window_ns", parts, "share of the stream's time, %", theme)
