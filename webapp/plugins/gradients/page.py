"""Gradient norms per step."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.analysis.parameter_history import gradient_norms, gradient_rows, gradients
from lanescope.webapp.plugins.gradients import charts, ids
from lanescope.webapp.plugins.gradients import page_layers as layers
from lanescope.webapp.plugins.gradients import page_rank_layers as rank_layers
from lanescope.webapp.plugins.gradients import page_threads as threads
from lanescope.webapp.plugins.gradients.parameter_table import NORMS, asked_rows, parameter_table
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.charts import MAX_LINES
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

TOTAL, PARAMETERS = "whole gradient", "per parameter"
_ALL = "all"


_LEAD = (
    "L2 norm of each parameter's gradient as the optimizer saw it, after clipping and after "
    "ranks were averaged. Click a point to see its step on the timeline."
)


def layout(context: Context) -> Component:
    """Controls and the chart of norms; `body` has the layers and the table of parameters."""
    run = context.run
    if not run.counts["gradient"]:
        return widgets.page(
            "Gradients",
            _LEAD,
            states.empty(
                "This run holds no gradient norms.",
                "They are recorded at every ",
                html.Code("optimizer.step()"),
                " of a torch.optim optimizer, at every level. A run without one, or whose "
                "recording ended before the first, has none.",
            ),
        )
    ranks = [{"label": "all ranks", "value": _ALL}, *widgets.rank_options(run.ranks, str)]
    return widgets.page(
        "Gradients",
        _LEAD,
        widgets.controls(
            widgets.choice("norm of the", ids.GRADIENT_OF, [TOTAL, PARAMETERS]),
            widgets.choice("rank", ids.GRADIENT_RANK, ranks),
            widgets.choice("scale", ids.GRADIENT_SCALE, ["linear", "log"]),
        ),
        widgets.graph(ids.GRADIENT_CHART, height=320, what="gradient norms"),
        html.P(id=ids.GRADIENT_NOTE, className="muted"),
        states.body_place("Adding up the gradients of all layers"),
    )


def body(context: Context) -> list[Component]:
    """Layers by step, by rank and by thread, and a table of parameters."""
    return [
        *layers.section(context),
        *rank_layers.section(context),
        *threads.section(context),
        *threads.layers_section(context),
        html.H2("Parameters"),
        html.P(
            "Every trainable parameter, in forward order, also without a gradient; norms of its "
            "gradient over the run. The last column counts steps without a gradient, over all "
            "ranks.",
            className="muted",
        ),
        widgets.controls(widgets.find_box(ids.PARAMETER_FIND, "parameter, or its gradient")),
        html.Div(id=ids.PARAMETER_NOTE),
        _table(context.run),
        widgets.downloads("gradients", "gradient_norms"),
    ]


def register(app: Dash, context: Context) -> None:
    """Draws the chart for its controls and the theme; a click leads to the step."""
    threads.register(app, context)
    layers.register(app, context)
    rank_layers.register(app, context)

    @app.callback(
        Output(ids.GRADIENT_CHART, "figure"),
        Output(ids.GRADIENT_NOTE, "children"),
        Input(ids.GRADIENT_OF, "value"),
        Input(ids.GRADIENT_RANK, "value"),
        Input(ids.GRADIENT_SCALE, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw(of: str, rank: str, scale: str, theme: Theme | None) -> tuple[go.Figure, str]:
        return _figure(context.run, of, rank, scale == "log", theme or "light")

    @app.callback(
        Output(ids.PARAMETER_TABLE, "filterModel"),
        Input(ids.PARAMETER_FIND, "value"),
        prevent_initial_call=True,
    )
    def find(text: str | None) -> dict[str, Any]:
        wanted = {"filterType": "text", "type": "contains", "filter": text}
        return {"parameter": wanted} if text else {}

    @app.callback(
        Output(ids.PARAMETER_TABLE, "getRowsResponse"),
        Output(ids.PARAMETER_NOTE, "children"),
        Input(ids.PARAMETER_TABLE, "getRowsRequest"),
    )
    def rows(request: dict[str, Any] | None) -> Any:
        if request is None:
            return no_update, no_update
        return asked_rows(parameter_table(context.run), request), []

    def address(point: dict[str, Any], _: str) -> str:
        rank = point.get("customdata", context.run.ranks[0])
        return step_link(context.run, int(rank), int(point["x"]))

    widgets.open_on_click(app, ids.GRADIENT_CHART, address)


def _figure(run: Run, of: str, rank: str, log: bool, theme: Theme) -> tuple[go.Figure, str]:
    """Returns the chart and what there is to say about it."""
    if of == TOTAL:
        norms = _norms(run)
        chosen = norms if rank == _ALL else norms[norms["rank"] == int(rank)]
        note = ""
        if _sharded(run):
            note = "Parameters are sharded: a line is the norm of what its rank holds of them. "
        elif rank == _ALL and len(run.ranks) > 1 and _alike(norms):
            note = "All ranks have the same norms: one line is drawn for all. "
            chosen = norms[norms["rank"] == norms["rank"].min()]
        ranks = int(chosen["rank"].nunique())
        if ranks > MAX_LINES:
            note += f"{MAX_LINES} of {units.count(ranks)} ranks are drawn, those farthest from the "
            note += "median of all. "
        if _constant(chosen):
            note += "The norm hardly changes: gradients are clipped to it before the step."
        return charts.total_norms(chosen, theme, log=log), note
    number = run.ranks[0] if rank == _ALL else int(rank)
    table = _gradients(run)
    parameters = table.loc[table["rank"] == number, "parameter"].nunique()
    note = f"Rank {number}. " if rank == _ALL else ""
    if parameters > MAX_LINES:
        note += (
            f"The {MAX_LINES} parameters with the greatest norms of "
            f"{units.count(parameters)}; the table of parameters has all."
        )
    return charts.parameter_norms(table, number, theme, log=log), note


def _sharded(run: Run) -> bool:
    """Whether parts of a gradient stand on several ranks."""
    return int(_gradients(run)["numel"].max()) < int(gradient_rows(run)["numel"].max())


def _constant(norms: pd.DataFrame) -> bool:
    low, high = norms["norm"].min(), norms["norm"].max()
    return len(norms) > 2 and bool(high - low <= 1e-3 * high)


def _alike(norms: pd.DataFrame) -> bool:
    spread = norms.groupby("step")["norm"].agg(["min", "max", "count"])
    same = (spread["max"] - spread["min"]) <= spread["max"].abs() * 1e-6
    return bool((same & (spread["count"] == norms["rank"].nunique())).all())


def _table(run: Run) -> Component:
    columns = [
        grids.column(
            "parameter", "parameter", width=340, minWidth=200, tooltipField="parameter", filter=True
        ),
        grids.column("gradient", "gradient", width=340, minWidth=200, tooltipField="gradient"),
        grids.column("numel", "elements", number=True, width=90, minWidth=84),
        grids.column("dtype", "dtype", width=90),
        *[grids.column(name, name, number=True, width=90, minWidth=84) for name in NORMS],
        grids.column("missing", "without", number=True, width=90, minWidth=84),
    ]
    height = min(420, 50 + 26 * len(parameter_table(run)))
    return grids.grid(ids.PARAMETER_TABLE, columns, None, label="Parameters", height=f"{height}px")


@lru_cache(maxsize=2)
def _gradients(run: Run) -> pd.DataFrame:
    return gradients(run)


@lru_cache(maxsize=2)
def _norms(run: Run) -> pd.DataFrame:
    return gradient_norms(run)
