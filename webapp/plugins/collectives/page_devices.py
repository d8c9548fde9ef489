"""Part of a page: what the devices of ranks do all the time, where there are any."""

from __future__ import annotations

import plotly.graph_objects as go
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from lanescope.webapp.plugins.collectives import charts as device_charts
from lanescope.webapp.plugins.collectives import ids
from lanescope.webapp.plugins.collectives.devices import temporal_breakdown
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme


def section(run: Run) -> list[Component]:
    """Returns heading, chart and table; nothing where no device was recorded."""
    table = temporal_breakdown(run)
    if table.empty:
        return []
    titles = {
        "from first to last kernel": "kernel_time_ns",
        "computes": "compute_ns",
        "only communicates or copies": "non_compute_ns",
        "does nothing": "idle_ns",
        "communication": "communication_ns",
    }
    shown = device_charts.least_computing(table)
    made = [grids.in_unit(title, shown[name]) for title, name in titles.items()]
    shares = [
        units.share_cell(row["overlap"] if row["communication_ns"] else None)
        for row in shown.to_dict("records")
    ]
    rows = list(zip(map(str, shown["rank"]), *(texts for _, texts in made), shares, strict=True))
    heads = ("rank", *(head for head, _ in made), "overlapped with compute")
    return [
        html.H2("Devices"),
        widgets.graph(
            ids.DEVICE_TIMES, height=150 + 26 * len(rows), what="the time of each device"
        ),
        widgets.head_of_table(heads, rows, range(1, len(heads)), len(table)),
        widgets.downloads("temporal_breakdown"),
    ]


def register(app: Dash, run: Run) -> None:
    """Draws the chart in the theme."""

    @app.callback(Output(ids.DEVICE_TIMES, "figure"), Input(frame_ids.THEME, "data"))
    def times(theme: Theme | None) -> go.Figure:
        return device_charts.breakdown(temporal_breakdown(run), theme or "light")
