"""Rates of operators: a roofline, a table, and the FLOPs of a step."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.plugins.efficiency import charts, page_baseline
from lanescope.webapp.plugins.efficiency.rates import efficiency, step_flops
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_RANK = "efficiency-rank"
PEAK = "efficiency-peak"
BANDWIDTH = "efficiency-bandwidth"
_CHART = "efficiency-chart"
_ABOUT = "efficiency-about"
_TABLE = "efficiency-table"

_MAX_ROWS = 25
_LEAD = "How much arithmetic the operators do, how fast, and what limits it."


def layout(_: Context) -> Component:
    """Returns the head of the page; `body` reads the operators of all ranks."""
    return widgets.page(
        "Efficiency", _LEAD, states.body_place("Adding up the work of the operators")
    )


def body(context: Context) -> list[Component]:
    """Returns the choice of the rank and of the device's peaks, the roofline and a table."""
    run = context.run
    table = efficiency(run)
    if table.empty:
        title = "This run has no matrix product, convolution or attention."
        return [states.empty(title, "Only of these operators the arithmetic is counted.")]
    if table["flops"].isna().all():
        return [
            states.empty(
                "The shapes of this run's operators were not recorded.",
                "Profile with ",
                html.Code("record_shapes=True"),
                " and import the trace.",
            )
        ]
    return [
        widgets.controls(
            widgets.choice("rank", _RANK, widgets.rank_options(run.ranks)),
            *_number("peak, GFLOP/s", PEAK),
            *_number("memory, GB/s", BANDWIDTH),
        ),
        html.P(id=_ABOUT),
        widgets.graph(_CHART, height=400, what="the roofline"),
        html.P(
            "Left of the bend memory limits an operator, right of it arithmetic. The area of a "
            "point is its share of the time. The line shows the highest rates of the run until "
            "you enter the peaks of the device.",
            className="muted",
        ),
        html.H2("Operators"),
        html.Div(id=_TABLE, className="wide-table long-names"),
        widgets.downloads("efficiency", "step_flops"),
        *([] if context.baseline is None else page_baseline.section()),
    ]


def _number(label: str, id: str) -> list[Component]:
    box = dcc.Input(id=id, type="number", min=0, className="step-box")
    return [html.Label(label, htmlFor=id), box]


def register(app: Dash, context: Context) -> None:
    """Fills the page for the rank, and the roof for the stated peaks."""
    run = context.run
    if context.baseline is not None:
        page_baseline.register(app, context.baseline, run, _RANK)

    @app.callback(
        Output(_CHART, "figure"),
        Input(_RANK, "value"),
        Input(PEAK, "value"),
        Input(BANDWIDTH, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def show(
        rank: int, peak: float | None, bandwidth: float | None, theme: Theme | None
    ) -> go.Figure:
        table = _of(run, rank)
        highest = table[["flops_per_s", "bytes_per_s"]].max()
        flops = peak * 1e9 if peak else float(highest["flops_per_s"])
        size = bandwidth * 1e9 if bandwidth else float(highest["bytes_per_s"])
        return charts.roofline(table, flops, size, bool(peak and bandwidth), theme or "light")

    @app.callback(
        Output(_ABOUT, "children"),
        Output(_TABLE, "children"),
        Input(_RANK, "value"),
        Input(PEAK, "value"),
    )
    def list_operators(rank: int, peak: float | None) -> tuple[str, Component]:
        return _about(run, rank, peak), _table(_of(run, rank))


def _of(run: Run, rank: int) -> pd.DataFrame:
    table = efficiency(run)
    return table[table["rank"] == rank]


def _about(run: Run, rank: int, peak: float | None) -> str:
    """The FLOPs of a step in words."""
    steps = step_flops(run)
    mine = steps[(steps["rank"] == rank) & (steps["flops"] > 0)]
    if mine.empty:
        return "No step of this rank has an operator of known work."
    flops, rate = float(mine["flops"].median()), float(mine["flops_per_s"].median())
    words = f"The median step does {_one(flops, 'FLOP')}, at a rate of {_one(rate, 'FLOP/s')}"
    return f"{words}, {units.share(rate * 1e-9 / peak)} of the peak." if peak else f"{words}."


def _table(table: pd.DataFrame) -> Component:
    shown = table.head(_MAX_ROWS)
    whole = max(int(table["time_ns"].sum()), 1)
    head, times = grids.in_unit("time", shown["time_ns"])
    made = (
        grids.in_unit("work a call", shown["flops"], "FLOP"),
        grids.in_unit("rate", shown["flops_per_s"], "FLOP/s"),
        grids.in_unit("bandwidth", shown["bytes_per_s"], "B/s"),
    )
    rows = [
        (
            widgets.calls_link(row.name, row.rank, short_title(row.name)),
            html.Code(row.shapes) if row.shapes else html.Span("not recorded", className="muted"),
            row.dtypes.partition(" ")[0],
            row.device,
            units.count(int(row.calls)),
            times[i],
            units.share_cell(row.time_ns / whole),
            *(texts[i] for _, texts in made),
        )
        for i, row in enumerate(shown.itertuples(index=False))
    ]
    titles = (title for title, _ in made)
    heads = ("operator", "shapes", "dtype", "device", "calls", head, "share", *titles)
    return widgets.plain_table(heads, rows, range(4, len(heads)))


def _one(value: float, base: str) -> str:
    unit, (text,) = units.in_one_unit([value], base)
    return f"{text} {unit}"
