"""Shows gradients by layer on the Gradients page: picture by depth, heat map, curves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import backward_link
from lanescope.webapp.analysis.parameter_history import HEALTHY_NORMS, gradient_rows
from lanescope.webapp.plugins.gradients import charts as gradient_charts
from lanescope.webapp.plugins.gradients import charts_heat, charts_layers, ids
from lanescope.webapp.plugins.gradients.layer_map import (
    DECAY,
    LAYER_MEASURES,
    SAMPLED,
    depths,
    layer_map,
    path_at_depth,
    quantiles,
)
from lanescope.webapp.plugins.gradients.not_finite import (
    low_precision,
    not_finite_elements,
    not_finite_layers,
)
from lanescope.webapp.plugins.gradients.rank_map import ranks_with_gradients
from lanescope.webapp.runs import units
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

EVERY = "all"
_STEPS, QUANTILES_OF = "chosen steps", "quantiles over steps"
LINES = 5
"""Steps that are drawn by depth at first."""
MAX_DEPTH_LINES = 8
DEPTH_WORDS = (
    "From the first layer of the forward, on the left, to the last, on the right. Where a line "
    "falls to the left, the gradient vanishes on its way to the input; where it rises, it explodes."
)
_READABLE = 60
"""Rows of the heat map; of more, the module tree is collapsed at first."""
_MAX_RANKS = 8
"""Lines of ranks that can be distinguished."""


def section(context: Context) -> list[Component]:
    """Returns controls, the picture by depth, the heat map, and the layer chosen in it."""
    run = context.run
    deepest = depths(run)
    levels = [{"label": "every layer", "value": EVERY}]
    levels += [{"label": f"{n} of {deepest} levels", "value": str(n)} for n in range(1, deepest)]
    measures = [
        {"label": words, "value": name}
        for name, (words, _) in LAYER_MEASURES.items()
        if (name != "baseline" or context.baseline is not None)
        and (name not in SAMPLED or run.counts["parameter"])
    ]
    ranks = widgets.rank_options(ranks_with_gradients(context.run), str)
    choices = (
        widgets.choice("show the", ids.LAYER_MEASURE, measures, "gradient", wide=True),
        widgets.choice("modules", ids.LAYER_DEPTH, levels, _depth(context)),
        widgets.choice("rank", ids.LAYER_RANK, ranks),
    )
    steps = gradient_rows(run)["step"].unique()
    lines = (
        widgets.choice("lines", ids.DEPTH_LINES, [_STEPS, QUANTILES_OF], _STEPS),
        _steps_box(sorted(int(step) for step in steps)),
    )
    return [
        html.H2("Gradient by depth"),
        widgets.controls(*choices, *lines),
        widgets.graph(ids.DEPTH_CHART, height=360, what="gradient norms by depth"),
        html.P(DEPTH_WORDS, className="muted"),
        html.H2("Layers by step"),
        widgets.graph(ids.LAYER_HEAT, height=460, what="the norm of each layer"),
        html.P(id=ids.LAYER_NOTE, className="muted"),
        html.H2("The layer over time"),
        widgets.graph(ids.LAYER_CURVES, height=300, what="the course of the layer"),
        *not_finite_part(context),
        *few_bits(context),
    ]


def _steps_box(steps: Sequence[int]) -> Component:
    """A field for the steps to draw; at first LINES of them, from the first to the last."""
    some = sorted({steps[i] for i in np.linspace(0, len(steps) - 1, LINES).round().astype(int)})
    shown = " ".join(map(str, some))
    return widgets.find_box(ids.DEPTH_STEPS, f"such as {steps[0]} {steps[-1]}", "steps", shown)


def not_finite_part(context: Context) -> list[Component]:
    """Returns the table of layers with NaN or infinite gradients; nothing where there are none."""
    table = not_finite_layers(context.run)
    if table.empty:
        return []
    elements = not_finite_elements(context.run).reindex(table["layer"])
    rows = table.assign(
        elements=[None if pd.isna(share) else float(share) for share in elements],
        elements_text=["" if pd.isna(share) else units.share(share) for share in elements],
        layer=charts_layers.layer_names(table["layer"]),
        share_text=[units.share(share) for share in table["share"]],
    ).to_dict("records")
    columns = [
        grids.column("layer", "layer", flex=3, minWidth=200),
        grids.column("share", "share of steps", number=True, text=True, minWidth=130),
        *(
            [grids.column("elements", "of elements", number=True, text=True, minWidth=110)]
            if elements.notna().any()
            else []
        ),
        *[
            grids.column(name, words, number=True)
            for name, words in (
                ("wrong", "steps"),
                ("skipped", "skipped"),
                ("first", "first"),
                ("last", "last"),
                ("parameters", "parameters"),
            )
        ],
    ]
    label = "NaN and infinite gradients"
    also = (
        " The shares of elements are of all that the layer's backward computed in the run."
        if elements.notna().any()
        else ""
    )
    return [
        html.H2(label),
        html.P(
            "Layers with NaN or infinite gradients on any rank, and the share of their steps with "
            "gradients. Skipped counts the steps that a gradient scaler left out." + also,
            className="muted",
        ),
        grids.grid("not-finite-table", columns, rows, label=label),
    ]


def few_bits(context: Context) -> list[Component]:
    """Returns the table of what underflowed and overflowed in each layer; nothing without 16-bit
    numbers."""
    table = low_precision(context.run)
    if table.empty:
        return []
    shares = ("underflow", "overflow", "nan")
    rows = table.assign(
        layer=[str(layer) or "(no module)" for layer in table["layer"]],
        **{f"{name}_text": [units.share(share) for share in table[name]] for name in shares},
    ).to_dict("records")
    columns = [
        grids.column("layer", "layer", flex=3, minWidth=200),
        grids.column("phase", "phase"),
        grids.column("dtype", "dtype"),
        grids.column("elements", "elements", number=True),
        grids.column("underflow", "0: underflow", number=True, text=True, minWidth=120),
        grids.column("overflow", "infinite: overflow", number=True, text=True, minWidth=140),
        grids.column("nan", "NaN", number=True, text=True),
    ]
    label = "Underflow and overflow in 16 bits and fewer"
    return [
        html.H2(label),
        html.P(
            "Of the elements that a layer computed in the whole run in float16, bfloat16 or 8 "
            "bits, how many became 0 and how many infinite. A ReLU, a mask or dropout makes zeros "
            "on purpose, in forward and then in backward; others were too small for the dtype.",
            className="muted",
        ),
        grids.grid(
            "few-bits-table",
            columns,
            rows,
            label=label,
        ),
    ]


def register(app: Dash, context: Context) -> None:
    """Updates the charts from their controls, clicks in the heat map, and the theme."""
    choices = (
        Input(ids.LAYER_MEASURE, "value"),
        Input(ids.LAYER_DEPTH, "value"),
        Input(ids.LAYER_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )

    @app.callback(
        Output(ids.LAYER_HEAT, "figure"),
        Output(ids.LAYER_HEAT, "style"),
        *choices,
    )
    def heat(
        measure: str, depth: str, rank: str, theme: Theme | None
    ) -> tuple[go.Figure, dict[str, str]]:
        table = _table(context, int(rank), measure, depth_of(depth))
        none = "no gradient" if measure not in SAMPLED else "not known"
        figure = charts_heat.layer_heat(
            table, LAYER_MEASURES[measure][1], theme or "light", none=none
        )
        return figure, heat_style(len(table))

    @app.callback(
        Output(ids.DEPTH_CHART, "figure"),
        Input(ids.DEPTH_LINES, "value"),
        Input(ids.DEPTH_STEPS, "value"),
        *choices,
    )
    def by_depth(
        lines: str, steps: str | None, measure: str, depth: str, rank: str, theme: Theme | None
    ) -> go.Figure:
        chosen_steps = "" if lines == QUANTILES_OF else steps or ""
        return depth_figure(
            context, chosen_steps, measure, depth_of(depth), int(rank), theme or "light"
        )

    @app.callback(
        Output(ids.LAYER_CURVES, "figure"),
        Output(ids.LAYER_NOTE, "children"),
        Input(ids.LAYER_HEAT, "clickData"),
        *choices,
    )
    def choose(
        click: dict[str, Any] | None, measure: str, depth: str, rank: str, theme: Theme | None
    ) -> tuple[go.Figure, list[Any]]:
        return chosen_layer(context, click, measure, depth_of(depth), int(rank), theme or "light")


def depth_figure(
    context: Context, steps: str, measure: str, depth: int | None, rank: int, theme: Theme
) -> go.Figure:
    """Returns a measure by depth: a line per step that `steps` names, without one the quantiles of
    all.

    Of a step at which it was not taken, the last before it. At most MAX_DEPTH_LINES steps.
    """
    table = _table(context, rank, measure, depth)
    named = [int(one) for one in re.findall(r"\d+", steps)[:MAX_DEPTH_LINES]]
    known = sorted({_at_or_before(table, step) for step in named}) if table.shape[1] else []
    lines = {f"step {step}": table[step] for step in known}
    if not lines:
        lines = quantiles(table)
    if context.baseline is not None and measure != "baseline":
        base = layer_map(context.baseline, rank, measure, depth).reindex(table.index)
        if known and base.shape[1]:
            lines["baseline"] = base[_at_or_before(base, known[-1])]
    return gradient_charts.depth_lines(
        lines,
        LAYER_MEASURES[measure][1],
        theme,
        HEALTHY_NORMS if measure == "gradient" else None,
        DECAY if measure == "gradient" else None,
    )


def _at_or_before(table: pd.DataFrame, step: int) -> int:
    """Returns the last column up to a step; without one the first."""
    earlier = [int(one) for one in table.columns if one <= step]
    return earlier[-1] if earlier else int(table.columns[0])


def chosen_layer(
    context: Context,
    click: dict[str, Any] | None,
    measure: str,
    depth: int | None,
    rank: int,
    theme: Theme,
) -> tuple[go.Figure, list[Any]]:
    """Returns curves of the layer whose cell was clicked, and a text about it."""
    table = _table(context, rank, measure, depth)
    _, title = LAYER_MEASURES[measure]
    if table.empty:
        empty = gradient_charts.layer_curves({}, title, None, theme)
        return empty, ["Nothing of that was recorded on this rank."]
    point = (click or {}).get("points", [{}])[0]
    name, column = str(point.get("y", "")), str(point.get("x", ""))
    picked = charts_heat.greatest_cell(table, name, column)
    layer = path_at_depth("" if name == charts_layers.MODEL else name, depth)
    if picked is not None:
        layer, step = picked
    elif click and layer in table.index and column.isdigit():  # clicked in another map
        step = _at_or_before(table, int(column))
    else:
        layer, step = str(table.index[0]), int(table.columns[-1])
    band = HEALTHY_NORMS if measure == "gradient" else None
    curves = {}
    for other in [rank, *[one for one in ranks_with_gradients(context.run) if one != rank]][
        :_MAX_RANKS
    ]:
        mine = _table(context, other, measure, depth)
        if layer in mine.index:
            curves[f"rank {other}"] = mine.loc[layer].dropna()
    if context.baseline is not None and measure != "baseline":
        base = layer_map(context.baseline, rank, measure, depth)
        if layer in base.index:
            curves["baseline"] = base.loc[layer].dropna()
    return (
        gradient_charts.layer_curves(curves, title, int(step), theme, band),
        _note(context, rank, layer, int(step), table, bool(click)),
    )


def _note(
    context: Context, rank: int, layer: str, step: int, table: pd.DataFrame, picked: bool
) -> list[Any]:
    value = table.at[layer, step]
    words = "NaN or infinite" if value == inf else units.number(value)
    if pd.isna(value):
        words = "none"
    link = context.address(backward_link(context.run, rank, layer, step))
    hint = [] if picked else ["Click a cell to choose a layer and a step; grey: no gradient. "]
    return [
        *hint,
        html.B(layer or "the model itself"),
        f" at step {step}, rank {rank}: {words}. ",
        dcc.Link("Show its backward pass", href=link),
    ]


def _table(context: Context, rank: int, measure: str, depth: int | None) -> pd.DataFrame:
    return layer_map(context.run, rank, measure, depth, context.baseline)


def _depth(context: Context) -> str:
    """The deepest cut that leaves a readable number of layers."""
    layers = [str(layer) for layer in gradient_rows(context.run)["layer"].unique()]
    if len(layers) <= _READABLE or depths(context.run) == 1:
        return EVERY
    fits = [
        n
        for n in range(1, depths(context.run))
        if len({path_at_depth(layer, n) for layer in layers}) <= _READABLE
    ]
    return str(max(fits, default=1))


def heat_style(rows: int) -> dict[str, str]:
    """Returns height of a heat map of so many layers."""
    return {"height": f"{min(1100, 140 + 15 * rows)}px"}


def depth_of(depth: str) -> int | None:
    """Returns the depth that the control of the module tree selects; None: all levels."""
    return None if depth == EVERY else int(depth)
