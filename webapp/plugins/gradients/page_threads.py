"""The parts of the Gradients page about threads that run backward: what each does by step, and what
it added to each layer's gradient.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output
from dash.development.base_component import Component

from lanescope.webapp.plugins.gradients import charts as gradient_charts
from lanescope.webapp.plugins.gradients import charts_heat, ids
from lanescope.webapp.plugins.gradients import page_layers as layers
from lanescope.webapp.plugins.gradients.backward_threads import (
    THREAD_MEASURES,
    added_by_layer,
    backward_threads,
)
from lanescope.webapp.plugins.gradients.layer_map import as_in_model, path_at_depth
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
    """Draws the chart and the heat map for their controls and the theme."""
    _register_layers(app, context)

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


ALL_THREADS = (
    "L2 norm of what each thread's backward added to a layer's gradient, before it was added: root "
    "mean square over the steps that were measured. Grey: it added nothing there. "
)
ONE_THREAD = "L2 norm of what this one thread's backward added to a layer's gradient in a step. "


def layers_section(context: Context) -> list[Component]:
    """Returns a heat map of layers by thread, or by step of one thread; nothing where none was
    measured."""
    choices = _choices(context.run)
    if not choices:
        return []
    options = [{"label": label, "value": value} for value, label in choices.items()]
    choice = widgets.choice("show", ids.THREADS_ACROSS, options, wide=True)
    return widgets.chart_section(
        "Layers by thread", [choice], ids.THREADS_HEAT, ids.THREADS_HEAT_NOTE
    )


def _register_layers(app: Dash, context: Context) -> None:
    """Draws the heat map for its control, the depth of the one of layers, and the theme."""

    @app.callback(
        Output(ids.THREADS_HEAT, "figure"),
        Output(ids.THREADS_HEAT, "style"),
        Output(ids.THREADS_HEAT_NOTE, "children"),
        Input(ids.THREADS_ACROSS, "value"),
        Input(ids.LAYER_DEPTH, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw(across: str, depth: str, theme: Theme | None) -> tuple[go.Figure, dict[str, str], str]:
        rank, _, thread = across.partition("/")
        table = by_thread(context.run, int(rank), thread, layers.depth_of(depth))
        across = "step" if thread else "thread"
        figure = charts_heat.layer_heat(
            table, "norm added", theme or "light", across, none="nothing added"
        )
        note = ONE_THREAD if thread else ALL_THREADS
        return figure, layers.heat_style(len(table)), note


def by_thread(run: Run, rank: int, thread: str, depth: int | None) -> pd.DataFrame:
    """Returns norm added, a row per layer in the model's order: a column per step of a thread, or,
    where `thread` is empty, one per thread of the rank, by name."""
    rows = added_by_layer(run)
    rows = rows[rows["rank"] == rank]
    steps = rows["step"].nunique()
    groups = {layer: path_at_depth(str(layer), depth) for layer in rows["layer"].unique()}
    rows = rows.assign(group=rows["layer"].map(groups), square=rows["added"] ** 2)
    if thread:
        squares = rows[rows["thread"] == thread].groupby(["group", "step"], sort=False)["square"]
        table = np.sqrt(squares.sum()).unstack("step").sort_index(axis=1)
    else:
        squares = rows.groupby(["group", "thread"], sort=False)["square"]
        names = {key[1]: name for key, name in widgets.thread_names(run).items() if key[0] == rank}
        table = np.sqrt(squares.sum() / steps).unstack("thread")
        table = table[[one for one in names if one in table.columns]].rename(columns=names)
    return table.reindex(as_in_model(run, rank, [str(one) for one in table.index]))


def _choices(run: Run) -> dict[str, str]:
    """What can be shown: RANK/ is all threads of a rank, RANK/THREAD the steps of one."""
    measured = added_by_layer(run)[["rank", "thread"]].drop_duplicates()
    known = {(int(rank), str(thread)) for rank, thread in measured.itertuples(index=False)}
    ranks = sorted({rank for rank, _ in known})
    of = {rank: f" of rank {rank}" if len(ranks) > 1 else "" for rank in ranks}
    found = {f"{rank}/": f"all threads{of[rank]}" for rank in ranks}
    for (rank, thread), name in widgets.thread_names(run).items():
        if (rank, thread) in known:
            found[f"{rank}/{thread}"] = f"{name}{of[rank]}, by step"
    return found
