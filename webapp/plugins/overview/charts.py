"""Figures of the first page."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.time.breakdown import CATEGORIES
from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import nothing
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import step_axis, template

MAX_TIMES_MEDIAN = 3.0
"""A bar longer than this, as the first step's often is, is cut off and its length written on it:
else no other could be read."""

MIN_SHARE = 0.002
"""Of all steps together; categories below are not drawn."""

MAX_BARS = 150
"""Bars that can still be told apart and clicked; of more steps, neighbours share one."""

TOKENS = {
    "data_loading": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "compute": "other",
    "exposed_communication": "collective",
    "waiting_for_ranks": "waiting",
    "waiting_for_threads": "blocked",
    "copy": "copy",
    "launch": "launch",
    "host_bound": "idle",
    "python": "python",
    "other": "other",
}
"""Category of time -> the token of its colour."""


def step_bars(steps: pd.DataFrame, theme: Theme) -> go.Figure:
    """Stacked bars of `breakdown.mean_steps`, ms; a click gets the first and last step of a bar."""
    if steps.empty:
        return nothing("no training step was recorded")
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    per_bar = max(1, -(-len(steps) // MAX_BARS))
    bars = steps.groupby(np.arange(len(steps)) // per_bar)
    means, first, last = bars.mean(), bars["step"].first(), bars["step"].last()
    named = [
        f"step {a}" if a == b else f"steps {a} to {b}" for a, b in zip(first, last, strict=True)
    ]
    customdata = list(zip(first.tolist(), last.tolist(), named, strict=True))
    colours = tokens()[theme]
    lengths = means["duration_ns"] * 1e-6
    top = 1.1 * float(lengths[lengths <= MAX_TIMES_MEDIAN * lengths.median()].max())
    for name, title in CATEGORIES.items():
        values = means[f"{name}_ns"] * 1e-6
        if values.sum() <= MIN_SHARE * lengths.sum():
            continue
        figure.add_bar(
            x=first.tolist(),
            y=values.tolist(),
            name=title,
            width=per_bar * 0.86,
            marker={"color": colours[TOKENS[name]], "line": {"width": 0}},
            customdata=customdata,
            hovertemplate=f"<b>{title}</b> %{{y:.4~g}} ms<br>%{{customdata[2]}}<extra></extra>",
        )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal", "y": 1.12})
    figure.update_xaxes(step_axis(steps["step"].tolist()))
    figure.update_yaxes(title_text="step time, ms", range=[0, top])
    for step, length in zip(first.tolist(), lengths.tolist(), strict=True):
        if length > top:
            figure.add_annotation(
                x=step,
                y=top,
                text=f"↑ {units.duration(length * 1e6)}",
                showarrow=False,
                xanchor="left",
                yanchor="bottom",
                font={"size": 11, "color": colours["muted"]},
            )
    return figure
