"""What each stream does all the time, and why it is idle."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.devices.idle import CAUSES
from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import escaped
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import template

PARTS = {
    "busy_ns": ("runs kernels", "forward", ""),
    "idle_host_ns": (CAUSES["host"], "python", "/"),
    "idle_communication_ns": (CAUSES["communication"], "collective", "\\"),
    "idle_copy_ns": (CAUSES["copy"], "copy", "x"),
    "idle_other_stream_ns": (CAUSES["other_stream"], "other", "."),
    "idle_start_ns": (CAUSES["start"], "launch", "-"),
    "idle_unknown_ns": (CAUSES["unknown"], "idle", ""),
}
"""Column -> words, token, pattern: never colour alone."""


def stream_times(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Shares of the time of each stream, from its first kernel to its last: `idle.streams`."""
    colours = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "barmode": "stack"})
    names = [escaped(str(name)) for name in table["stream"]]
    for column, (words, token, pattern) in PARTS.items():
        if not table[column].any():
            continue
        figure.add_bar(
            y=names,
            x=(table[column] / table["window_ns"].clip(lower=1) * 100).tolist(),
            customdata=[units.duration(value) for value in table[column]],
            name=words,
            orientation="h",
            marker={
                "color": colours[token],
                "pattern": {"shape": pattern, "size": 6, "solidity": 0.25},
                "line": {"width": 0},
            },
            hovertemplate=f"<b>%{{y}}</b> {words}<br>%{{x:.3g}} %, %{{customdata}}<extra></extra>",
        )
    figure.update_layout(bargap=0.35, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text="share of the stream's time, %", range=[0, 100])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure
