"""What the devices of ranks do, as Plotly figures."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.runs.units import duration
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import template

PARTS = (
    ("compute_ns", "computes", "forward", ""),
    ("non_compute_ns", "only communicates or copies", "collective", "/"),
    ("idle_ns", "does nothing", "line", ""),
)
"""Column of the table, words, token and pattern: never colour alone."""


def breakdown(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Shares of the time of each rank's device, a bar per rank that adds up to all of it.

    `table` is that of `analysis.devices.temporal_breakdown`.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "barmode": "stack"})
    names = [f"rank {rank}" for rank in table["rank"]]
    for column, words, token, pattern in PARTS:
        shares = table[column] / table["kernel_time_ns"].clip(lower=1) * 100
        figure.add_bar(
            y=names,
            x=[float(share) for share in shares],
            customdata=[duration(value) for value in table[column]],
            name=words,
            orientation="h",
            marker={
                "color": colour[token], "pattern": {"shape": pattern, "size": 6, "solidity": 0.25},
                "line": {"width": 0},
            },
            hovertemplate=f"<b>%{{y}} {words}</b><br>%{{x:.3g}} %, %{{customdata}}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(bargap=0.35, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text="share of the time of the device, %", range=[0, 100])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure
