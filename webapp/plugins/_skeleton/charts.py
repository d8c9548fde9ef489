"""Figures of the page: tables in, Plotly figures out.

SKELETON: only charts*.py and page*.py may import Plotly. Its script holds scatter, bar, heatmap and
icicle; assets/vendor/plotly/README.md says how to add a kind.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.ui.charts import escaped
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.theme import template


def longest(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Returns the longest call of each operator, as `findings.call_durations` has it, seconds."""
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    figure.add_bar(
        y=[escaped(str(name)) for name in table["name"]],
        x=[float(value) * 1e-9 for value in table["longest_ns"]],
        orientation="h",
        hovertemplate="<b>%{y}</b><br>%{x:.3s}s<extra></extra>",
    )
    figure.update_xaxes(title_text="longest call, s", exponentformat="SI")
    figure.update_yaxes(autorange="reversed", type="category")
    return figure
