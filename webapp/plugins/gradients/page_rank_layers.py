"""Shows on the Gradients page which layer has other gradients on which rank."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import backward_link
from lanescope.webapp.plugins.gradients import charts_heat, charts_layers, ids
from lanescope.webapp.plugins.gradients import page_layers as layers
from lanescope.webapp.plugins.gradients.layer_map import layer_map
from lanescope.webapp.plugins.gradients.rank_map import RankMap, rank_map, ranks_with_gradients
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run_warnings import ranks_text
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui import widgets
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

TITLE = "Layers by rank"
ALL = "all"
_MAX_ROWS = 60
"""Layers that are drawn: those farthest from the median."""
_NAMED = 3


def section(context: Context) -> list[Component]:
    """Returns what ranks differ in, in words and as a heat map; nothing of a job of a single
    rank."""
    run = context.run
    ranks = ranks_with_gradients(run)
    if len(run.ranks) < 2:
        return []
    title = html.H2(TITLE)
    if len(ranks) < 2:
        words = (
            "The parameters are sharded, or a single rank has an optimizer: each layer has one "
            "norm, of its whole gradient, and no rank's can differ."
        )
        return [title, html.P(words, className="muted")]
    found = rank_map(run)
    if not found.layers_apart:
        return [title, widgets.note(words_of(found), "good" if found.compared else "")]
    choices = [{"label": "all ranks, farthest step", "value": ALL}]
    choices += [{"label": f"rank {rank} by step", "value": str(rank)} for rank in found.ranks_apart]
    choice = widgets.choice("show", ids.RANKS_ACROSS, choices, wide=True)
    heading, *chart = widgets.chart_section(TITLE, [choice], ids.RANKS_HEAT, ids.RANKS_NOTE)
    return [heading, widgets.note(words_of(found), "warn"), *chart]


def register(app: Dash, context: Context) -> None:
    """Draws the heat map for its control, the depth of the one of layers, and the theme."""

    @app.callback(
        Output(ids.RANKS_HEAT, "figure"),
        Output(ids.RANKS_HEAT, "style"),
        Input(ids.RANKS_ACROSS, "value"),
        Input(ids.LAYER_DEPTH, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw(across: str, depth: str, theme: Theme | None) -> tuple[go.Figure, dict[str, str]]:
        return ranks_figure(rank_map(context.run, layers.depth_of(depth)), across, theme or "light")

    @app.callback(
        Output(ids.RANKS_NOTE, "children"),
        Input(ids.RANKS_HEAT, "clickData"),
        Input(ids.LAYER_DEPTH, "value"),
    )
    def choose(click: dict[str, Any] | None, depth: str) -> list[Any]:
        return chosen_cell(context, click, layers.depth_of(depth))


def words_of(found: RankMap) -> str:
    """Returns whether ranks have the same norms, else which has others, where and since when."""
    ranks = units.counted(len(found.ranks), "rank")
    if not found.compared:
        return "No layer is on two ranks: there is nothing to compare."
    names = charts_layers.layer_names(found.layers_apart)
    if not names:
        at = units.counted(len(found.steps), "step")
        return f"All {ranks} have the same norm in every layer, at each of {at}."
    step = found.steps[int(found.apart.any(axis=(0, 1)).argmax())]
    own = found.ranks_apart
    which = f"rank{'s' if len(own) > 1 else ''} {ranks_text(own)}"
    if len(names) == len(found.layers):
        where = f"in all {units.counted(len(names), 'layer')}"
    else:
        some = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        where = f"in {units.count(len(names))} of {units.count(len(found.layers))} layers ({some})"
    ratio, steps = found.farthest()
    away = np.abs(np.log(np.clip(ratio.to_numpy(), 1e-300, 1e300)))
    layer, rank = np.unravel_index(np.nanargmax(away), away.shape)
    value = ratio.iat[layer, rank]
    has = (
        "a norm that is NaN or infinite"
        if np.isinf(value)
        else (f"{charts_layers.factor(value)} the median of all ranks")
    )
    farthest = ratio.index[layer] or charts_layers.MODEL
    most = (
        f"The farthest is {farthest} at step {steps.iat[layer, rank]}, "
        f"where rank {ratio.columns[rank]} has {has}."
    )
    return f"Norms differ {where}, on {which}, from step {step} on. {most}"


def ranks_figure(found: RankMap, across: str, theme: Theme) -> tuple[go.Figure, dict[str, str]]:
    """Returns the heat map of the layers in which ranks differ, and its height."""
    if across == ALL:
        table, steps = found.farthest()
    else:
        table = found.of_rank(int(across))
        steps = pd.DataFrame(
            np.tile(table.columns, (len(table), 1)), index=table.index, columns=table.columns
        )
    with np.errstate(divide="ignore"):
        away = np.abs(np.log(table)).max(axis=1)
    rows = away[found.layers_apart].nlargest(_MAX_ROWS).index
    kept = table.index.isin(rows)
    drawn = charts_heat.rank_heat(
        table[kept], steps[kept], None if across == ALL else int(across), theme
    )
    return drawn, layers.heat_style(int(kept.sum()) + 2)


def chosen_cell(context: Context, click: dict[str, Any] | None, depth: int | None) -> list[Any]:
    """Returns the norms of all ranks at the cell that was clicked, and the way to its backward."""
    what = (
        "Norm of each layer's gradient, relative to the median of all ranks at the same step; of "
        "the layers in which they differ."
    )
    point = (click or {}).get("points", [{}])[0]
    numbers = [int(one) for one in re.findall(r"-?\d+", str(point.get("customdata", "")))]
    rank, step = numbers if len(numbers) == 2 else (-1, -1)
    layer = str(point.get("y", "")).replace(charts_layers.MODEL, "")
    found = rank_map(context.run, depth)
    if rank not in found.ranks or step not in found.steps or layer not in found.layers:
        return [f"{what} Click a cell for its numbers."]
    values = []
    for one in found.ranks:
        table = layer_map(context.run, one, "gradient", depth)
        norm = table.at[layer, step] if layer in table.index and step in table.columns else np.nan
        values.append(f"rank {one}: {'none' if np.isnan(norm) else f'{units.number(norm, 4)}'}")
    link = context.address(backward_link(context.run, rank, layer, step))
    return [
        html.B(layer or "the model itself"),
        f" at step {step}. {', '.join(values)}. ",
        dcc.Link(f"Show its backward pass on rank {rank}", href=link),
    ]
