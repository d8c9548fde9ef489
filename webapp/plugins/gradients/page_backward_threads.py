"""The part of the Gradients page about ranks on which several threads run backward."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output
from dash.development.base_component import Component

from lanescope.webapp.plugins.gradients import charts as gradient_charts
from lanescope.webapp.plugins.gradients import ids
from lanescope.webapp.plugins.gradients.backward_threads import THREAD_MEASURES, backward_threads
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui import widgets
from lanescope.webapp.ui.charts import MAX_LINES
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_WORDS = {
    "added": "L2 norm of what each thread's backward added to the gradients in a step, before it "
    "was added; of several backwards the root of the sum of squares. ",
    "accumulations": "How many gradients each thread added to those of parameters in a step: "
    "autograd's AccumulateGrad nodes that it ran. ",
    "elements": "How many elements the gradients had that each thread added in a step. ",
    "backward_s": "How long each thread was in backward in a step. ",
    "norm": "L2 norm of the gradients that each thread's own optimizer steps used. Where threads "
    "share parameters, that holds what others had added by then. ",
}
NOT_RECORDED = (
    "What a thread adds to the norm was not measured in this run: it is of parameters in host "
    "memory, as of the first moment at which no backward runs. "
)


def section(context: Context) -> list[Component]:
    """Returns a chart of threads by step; nothing where no rank has two threads that run
    backward."""
    table = backward_threads(context.run)
    known = [name for name in THREAD_MEASURES if table[name].notna().any()]
    if not known:
        return []
    options = [{"label": THREAD_MEASURES[name], "value": name} for name in known]
    ranks = widgets.rank_options(table["rank"].unique(), str)
    choices = (
        widgets.choice("show the", ids.THREADS_MEASURE, options, wide=True),
        widgets.choice("rank", ids.THREADS_RANK, ranks),
    )
    return widgets.chart_section(
        "Threads in backward", choices, ids.THREADS_CHART, ids.THREADS_NOTE, height=280
    )


def register(app: Dash, context: Context) -> None:
    """Draws the chart for its control and the theme."""

    @app.callback(
        Output(ids.THREADS_CHART, "figure"),
        Output(ids.THREADS_NOTE, "children"),
        Input(ids.THREADS_MEASURE, "value"),
        Input(ids.THREADS_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw(measure: str, rank: str, theme: Theme | None) -> tuple[go.Figure, str]:
        return threads_figure(context.run, measure, int(rank), theme or "light")


def threads_figure(run: Run, measure: str, rank: int, theme: Theme) -> tuple[go.Figure, str]:
    """Returns the chart of a measure of `MEASURES` on a rank, and what it is."""
    curves = _curves(run, measure, rank)
    note = _WORDS[measure]
    if backward_threads(run)["added"].isna().all():
        note += NOT_RECORDED
    if len(curves) > MAX_LINES:
        note += f"The {MAX_LINES} of {len(curves)} threads with the most of it are drawn."
        most = sorted(curves, key=lambda name: -curves[name].sum())[:MAX_LINES]
        curves = {name: series for name, series in curves.items() if name in most}
    title = THREAD_MEASURES[measure]
    if measure == "backward_s":
        longest = max((float(series.max()) for series in curves.values()), default=0.0)
        factor, unit = units.unit_for(longest * 1e9, "ns")
        curves = {name: series * (1e9 / factor) for name, series in curves.items()}
        title = f"{title}, {unit}"
    return gradient_charts.thread_curves(curves, title, theme), note


def _curves(run: Run, measure: str, rank: int) -> dict[str, pd.Series]:
    """By name, in the order of `Run.threads`."""
    by_thread = dict(iter(backward_threads(run).groupby(["rank", "thread"])))
    curves = {}
    for key, name in widgets.thread_names(run).items():
        own = by_thread.get(key)
        if key[0] == rank and own is not None and own[measure].notna().any():
            curves[name] = own.set_index("step")[measure].sort_index()
    return curves
