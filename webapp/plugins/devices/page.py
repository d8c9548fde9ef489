"""Streams, kernels, copies and the operators that launched them, of a rank."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from lanescope.webapp.plugins.devices import charts
from lanescope.webapp.plugins.devices.annotations import device_annotations
from lanescope.webapp.plugins.devices.idle import streams
from lanescope.webapp.plugins.devices.kernels import copies, device_operators, kernels
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.runs import units
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.charts import MAX_SHARE_BARS
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_RANK = "devices-rank"
_CHART = "devices-streams"
STREAMS = "devices-stream-table"
_KERNELS = "devices-kernels"
_COPIES = "devices-copies"
OPERATORS = "devices-operators"
ANNOTATIONS = "devices-annotations"

_MAX_ROWS = 15


def layout(context: Context) -> Component:
    """Returns the choice of the rank and the places of its tables."""
    most = max(streams(context.run).groupby("rank").size(), default=1)
    height = 150 + 26 * min(MAX_SHARE_BARS, most)
    return widgets.page(
        "Devices",
        "What the streams of devices do, why they are idle, and for which operators they work.",
        widgets.controls(widgets.choice("rank", _RANK, widgets.rank_options(context.run.ranks))),
        html.H2("Streams"),
        widgets.graph(_CHART, height=height, what="the time of each stream"),
        html.Div(id=STREAMS, className="wide-table"),
        html.H2("Kernels"),
        html.Div(id=_KERNELS, className="wide-table long-names"),
        html.H2("Copies"),
        html.Div(id=_COPIES, className="wide-table long-names"),
        html.H2("Operators by the time of their kernels"),
        html.Div(id=OPERATORS, className="wide-table long-names"),
        html.H2("Annotations by the time of their kernels"),
        html.Div(id=ANNOTATIONS, className="wide-table long-names"),
        widgets.downloads("streams", "kernels", "copies", "device_operators", "device_annotations"),
    )


def register(app: Dash, context: Context) -> None:
    """Fills the page for the rank."""
    run = context.run

    @app.callback(Output(_CHART, "figure"), Input(_RANK, "value"), Input(frame_ids.THEME, "data"))
    def show(rank: int, theme: Theme | None) -> go.Figure:
        return charts.stream_times(_of(streams(run), rank), theme or "light")

    @app.callback(
        Output(STREAMS, "children"),
        Output(_KERNELS, "children"),
        Output(_COPIES, "children"),
        Output(OPERATORS, "children"),
        Output(ANNOTATIONS, "children"),
        Input(_RANK, "value"),
    )
    def tables(rank: int) -> tuple[Component, ...]:
        return (
            _streams(_of(streams(run), rank)),
            _kernels(_of(kernels(run), rank)),
            _copies(_of(copies(run), rank)),
            _operators(_of(device_operators(run), rank)),
            _annotations(_of(device_annotations(run), rank)),
        )


def _of(table: pd.DataFrame, rank: int) -> pd.DataFrame:
    return table[table["rank"] == rank]


def _streams(table: pd.DataFrame) -> Component:
    shown = charts.busiest_streams(table)
    busy, times = grids.in_unit("kernels run", shown["busy_ns"])
    middle, typical = grids.in_unit("launch delay, median", shown["launch_delay_p50_ns"])
    long, worst = grids.in_unit("launch delay, p99", shown["launch_delay_p99_ns"])
    rows = [
        (
            row.stream,
            units.count(int(row.kernels)),
            times[i],
            units.share_cell(row.busy_ns / max(row.window_ns, 1)),
            typical[i],
            worst[i],
            _number(row.queue_p50),
            _number(row.queue_max),
        )
        for i, row in enumerate(shown.itertuples(index=False))
    ]
    heads = ("stream", "kernels", busy, "busy", middle, long, "queue, median", "queue, longest")
    return widgets.head_of_table(heads, rows, range(1, len(heads)), len(table))


def _kernels(table: pd.DataFrame) -> Component:
    shown = table.head(_MAX_ROWS)
    whole = max(int(table["time_ns"].sum()), 1)
    head, times = grids.in_unit("time", shown["time_ns"])
    each, medians = grids.in_unit("median", shown["median_ns"])
    rows = [
        (
            _name(row),
            row.type,
            units.count(int(row.calls)),
            times[i],
            units.share_cell(row.time_ns / whole),
            medians[i],
            row.grid or "",
            row.block or "",
            _number(row.registers),
            _number(row.shared_bytes),
            _number(row.occupancy),
        )
        for i, row in enumerate(shown.itertuples(index=False))
    ]
    heads = (
        *("kernel", "type", "calls", head, "share", each, "grid", "block"),
        *("registers", "shared, B", "occupancy, %"),
    )
    return widgets.head_of_table(heads, rows, range(2, len(heads)), len(table))


def _copies(table: pd.DataFrame) -> Component:
    if table.empty:
        return html.P("No copies were recorded.", className="muted")
    head, times = grids.in_unit("time", table["time_ns"])
    size, sizes = grids.in_unit("size", table["bytes"], "B")
    rate, rates = grids.in_unit("bandwidth", table["bytes_per_s"], "B/s")
    rows = [
        (_name(row), units.count(int(row.calls)), times[i], sizes[i], rates[i])
        for i, row in enumerate(table.itertuples(index=False))
    ]
    return widgets.plain_table(("copy", "calls", head, size, rate), rows, range(1, 5))


def _operators(table: pd.DataFrame) -> Component:
    shown = table.head(_MAX_ROWS)
    own, selves = grids.in_unit("kernels, self", shown["device_self_ns"])
    whole, totals = grids.in_unit("kernels, total", shown["device_total_ns"])
    host, hosts = grids.in_unit("host", shown["host_ns"])
    rows = [
        (
            _name(row),
            row.module,
            html.Code(row.shapes) if row.shapes else "",
            units.count(int(row.calls)),
            selves[i],
            totals[i],
            hosts[i],
        )
        for i, row in enumerate(shown.itertuples(index=False))
    ]
    heads = ("operator", "module", "shapes", "calls", own, whole, host)
    return widgets.head_of_table(heads, rows, range(3, len(heads)), len(table))


def _annotations(table: pd.DataFrame) -> Component:
    if table.empty:
        return html.P(
            ["Name a part of the program with ", html.Code("torch.profiler.record_function"), "."],
            className="muted",
        )
    shown = table.head(_MAX_ROWS)
    columns = {
        "kernels, self": "device_self_ns",
        "kernels, total": "device_total_ns",
        "on the device": "device_span_ns",
        "host": "host_ns",
    }
    made = [grids.in_unit(title, shown[name]) for title, name in columns.items()]
    rows: list[tuple[Component | str, ...]] = [
        (
            _name(row),
            units.count(int(row.calls)),
            units.count(int(row.kernels)),
            *(texts[i] for _, texts in made),
        )
        for i, row in enumerate(shown.itertuples(index=False))
    ]
    heads = ("annotation", "calls", "kernels", *(title for title, _ in made))
    return widgets.head_of_table(heads, rows, range(1, len(heads)), len(table))


def _name(row: Any) -> Component:
    return widgets.calls_link(row.name, row.rank, short_title(row.name))


def _number(value: Any) -> str:
    return "" if value is None or pd.isna(value) else units.number(float(value))
