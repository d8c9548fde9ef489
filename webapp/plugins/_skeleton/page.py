"""The page: what it shows first, and what changes on it.

SKELETON: keep callbacks thin. They read what was chosen, call an analysis, return components.
What reads the events of all ranks belongs into a `body` (see `analysis.plugin.Page`): the page is
painted before it. A thousand ranks are too many for a row or a line each: `grids.grid` draws the
rows in sight.
"""

from __future__ import annotations

import plotly.graph_objects as go
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from lanescope.webapp.plugins._skeleton.charts import longest as longest_calls
from lanescope.webapp.plugins._skeleton.findings import call_durations
from lanescope.webapp.runs import units
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

# SKELETON: ids of components begin with the page's name, so that no two pages share one.
_RANK = "skeleton-rank"
_CHART = "skeleton-chart"

_MAX_ROWS = 20


def layout(context: Context) -> Component:
    """Returns a choice of the rank, a chart, and a table."""
    table = call_durations(context.run).head(_MAX_ROWS)
    usual, medians = grids.in_unit("median", table["median_ns"])
    most, maxima = grids.in_unit("longest", table["longest_ns"])
    rows = [
        (
            row.name,
            str(row.rank),
            units.count(row.calls),
            median,
            longest,
        )
        for row, median, longest in zip(table.itertuples(), medians, maxima, strict=True)
    ]
    heads = ("operator", "rank", "calls", usual, most)
    return widgets.page(
        "Skeleton",
        "How long each operator usually takes, and its longest call.",
        widgets.controls(widgets.choice("rank", _RANK, widgets.rank_options(context.run.ranks))),
        widgets.graph(_CHART, what="the longest calls"),
        html.H2("Longest calls"),
        widgets.plain_table(heads, rows, (1, 2, 3, 4)),
        widgets.downloads("skeleton_durations"),
    )


def register(app: Dash, context: Context) -> None:
    """Draws the chart for the rank and the theme."""

    @app.callback(Output(_CHART, "figure"), Input(_RANK, "value"), Input(frame_ids.THEME, "data"))
    def show(rank: int, theme: Theme | None) -> go.Figure:
        table = call_durations(context.run)
        return longest_calls(table[table["rank"] == rank].head(_MAX_ROWS), theme or "light")
