"""Shows gradients by layer on the Gradients page: heat map, curves, depth profile."""

from __future__ import annotations

from math import inf
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import backward_link
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.plugins.gradients import charts as gradient_charts
from lanescope.webapp.plugins.gradients import ids
from lanescope.webapp.plugins.gradients.layer_map import (
    AXES,
    DECAY,
    HEALTHY,
    MEASURES,
    SAMPLED,
    cut,
    depths,
    layer_map,
    profile,
)
from lanescope.webapp.plugins.gradients.not_finite import (
    low_precision,
    not_finite_elements,
    not_finite_layers,
)
from lanescope.webapp.plugins.gradients.rank_map import ranks_with_gradients
from lanescope.webapp.runs import units
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui import widgets
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

EVERY = "all"
READABLE = 60
"""Rows of the heat map; of more, the module tree is collapsed at first."""
MAX_RANKS = 8
"""Lines of ranks that can be distinguished."""


def section(context: Context) -> list[Component]:
    """Returns controls, the heat map, and two charts about the layers chosen in it."""
    run = context.run
    deepest = depths(run)
    levels = [{"label": "every layer", "value": EVERY}]
    levels += [{"label": f"{n} of {deepest} levels", "value": str(n)} for n in range(1, deepest)]
    measures = [
        {"label": words, "value": name}
        for name, words in MEASURES.items()
        if (name != "baseline" or context.baseline is not None)
        and (name not in SAMPLED or run.counts["parameter"])
    ]
    ranks = widgets.rank_options(ranks_with_gradients(context.run), str)
    choices = (
        widgets.choice("show the", ids.LAYER_MEASURE, measures, "gradient", wide=True),
        widgets.choice("modules", ids.LAYER_DEPTH, levels, _depth(context)),
        widgets.choice("rank", ids.LAYER_RANK, ranks),
    )
    return [
        *widgets.chart_section("Layers", choices, ids.LAYER_HEAT, ids.LAYER_NOTE, height=460),
        html.Div(
            [
                html.Div([html.H2(title), widgets.graph(id, height=340)])
                for title, id in (
                    ("The layer over time", ids.LAYER_CURVES),
                    ("The step by depth", ids.LAYER_PROFILE),
                )
            ],
            className="split even",
        ),
        *not_finite(context),
        *few_bits(context),
    ]


def not_finite(context: Context) -> list[Component]:
    """Table of the layers with NaN or infinite gradients; nothing where there are none."""
    table = not_finite_layers(context.run)
    if table.empty:
        return []
    elements = not_finite_elements(context.run).reindex(table["layer"])
    rows = table.assign(
        elements=[None if pd.isna(share) else float(share) for share in elements],
        elements_text=["" if pd.isna(share) else units.share(share) for share in elements],
        layer=gradient_charts.layer_names(table["layer"]),
        share_text=[units.share(share) for share in table["share"]],
    ).to_dict("records")
    columns = [
        widgets.column("layer", "layer", flex=3, minWidth=200),
        widgets.column("share", "share of steps", number=True, text=True, minWidth=130),
        *(
            [widgets.column("elements", "of elements", number=True, text=True, minWidth=110)]
            if elements.notna().any()
            else []
        ),
        *[
            widgets.column(name, words, number=True)
            for name, words in (
                ("wrong", "steps"),
                ("skipped", "skipped"),
                ("first", "first"),
                ("last", "last"),
                ("parameters", "parameters"),
            )
        ],
    ]
    height = None if len(rows) <= 14 else "400px"
    label = "NaN and infinite gradients"
    also = (
        " Of elements: of what the layer's backward computed in the whole run."
        if elements.notna().any()
        else ""
    )
    return [
        html.H2(label),
        html.P(
            "Layers with NaN or infinite gradients on any rank, and the share of their steps with "
            "gradients. Skipped: left out by a gradient scaler." + also,
            className="muted",
        ),
        widgets.grid("not-finite-table", columns, rows, label=label, height=height),
    ]


def few_bits(context: Context) -> list[Component]:
    """Table of what underflowed and overflowed in each layer; nothing without 16-bit numbers."""
    table = low_precision(context.run)
    if table.empty:
        return []
    shares = ("underflow", "overflow", "nan")
    rows = table.assign(
        layer=[str(layer) or "(no module)" for layer in table["layer"]],
        **{f"{name}_text": [units.share(share) for share in table[name]] for name in shares},
    ).to_dict("records")
    columns = [
        widgets.column("layer", "layer", flex=3, minWidth=200),
        widgets.column("phase", "phase"),
        widgets.column("dtype", "dtype"),
        widgets.column("elements", "elements", number=True),
        widgets.column("underflow", "0: underflow", number=True, text=True, minWidth=120),
        widgets.column("overflow", "infinite: overflow", number=True, text=True, minWidth=140),
        widgets.column("nan", "NaN", number=True, text=True),
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
        widgets.grid(
            "few-bits-table",
            columns,
            rows,
            label=label,
            height=None if len(rows) <= 14 else "400px",
        ),
    ]


def register(app: Dash, context: Context) -> None:
    """Updates the charts from their controls, clicks in the heat map, and the theme."""

    @app.callback(
        Output(ids.LAYER_HEAT, "figure"),
        Output(ids.LAYER_HEAT, "style"),
        Input(ids.LAYER_MEASURE, "value"),
        Input(ids.LAYER_DEPTH, "value"),
        Input(ids.LAYER_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def heat(
        measure: str, depth: str, rank: str, theme: Theme | None
    ) -> tuple[go.Figure, dict[str, str]]:
        table = _table(context, int(rank), measure, depth_of(depth))
        figure = gradient_charts.layer_heat(table, AXES[measure], theme or "light")
        return figure, heat_style(len(table))

    @app.callback(
        Output(ids.LAYER_CURVES, "figure"),
        Output(ids.LAYER_PROFILE, "figure"),
        Output(ids.LAYER_NOTE, "children"),
        Input(ids.LAYER_HEAT, "clickData"),
        Input(ids.LAYER_MEASURE, "value"),
        Input(ids.LAYER_DEPTH, "value"),
        Input(ids.LAYER_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def choose(
        click: dict[str, Any] | None, measure: str, depth: str, rank: str, theme: Theme | None
    ) -> tuple[go.Figure, go.Figure, list[Any]]:
        return chosen(context, click, measure, depth_of(depth), int(rank), theme or "light")


def chosen(
    context: Context,
    click: dict[str, Any] | None,
    measure: str,
    depth: int | None,
    rank: int,
    theme: Theme,
) -> tuple[go.Figure, go.Figure, list[Any]]:
    """Curves and depth profile of the cell that was clicked, and what there is to say of it."""
    table = _table(context, rank, measure, depth)
    title = AXES[measure]
    if table.empty:
        empty = gradient_charts.layer_curves({}, title, None, theme)
        return empty, empty, ["Nothing of that was recorded on this rank."]
    point = (click or {}).get("points", [{}])[0]
    layer = str(point.get("y", ""))
    layer = cut("" if layer == gradient_charts.MODEL else layer, depth)
    step = point.get("customdata")
    picked = bool(point) and layer in table.index
    if not picked:
        layer, step = str(table.index[0]), int(table.columns[-1])
    if step not in table.columns:  # chosen of another measure; of this one the last before it
        earlier = [int(one) for one in table.columns if step is not None and one <= step]
        step = earlier[-1] if earlier else int(table.columns[0])
    band = HEALTHY if measure == "gradient" else None
    curves, profiles = {}, {}
    for other in [rank, *[one for one in ranks_with_gradients(context.run) if one != rank]][
        :MAX_RANKS
    ]:
        mine = _table(context, other, measure, depth)
        if layer in mine.index:
            curves[f"rank {other}"] = mine.loc[layer].dropna()
        profiles[f"rank {other}"] = profile(mine, int(step))
    if context.baseline is not None and measure != "baseline":
        base = layer_map(context.baseline, rank, measure, depth)
        if layer in base.index:
            curves["baseline"] = base.loc[layer].dropna()
        profiles["baseline"] = profile(base, int(step))
    decay = DECAY if measure == "gradient" else None
    return (
        gradient_charts.layer_curves(curves, title, int(step), theme, band),
        gradient_charts.depth_profile(profiles, title, theme, band, decay),
        _note(context, rank, layer, int(step), table, picked),
    )


def _note(
    context: Context, rank: int, layer: str, step: int, table: pd.DataFrame, picked: bool
) -> list[Any]:
    value = table.at[layer, step]
    words = "NaN or infinite" if value == inf else units.number(value)
    if pd.isna(value):
        words = "none"
    link = context.address(backward_link(context.run, rank, layer, step))
    hint = [] if picked else ["Click a cell to choose a layer and a step. "]
    return [
        *hint,
        html.B(layer or "the model itself"),
        f" at step {step}, rank {rank}: {words}. ",
        dcc.Link("Its backward on the timeline", href=link),
    ]


def _table(context: Context, rank: int, measure: str, depth: int | None) -> pd.DataFrame:
    return layer_map(context.run, rank, measure, depth, context.baseline)


def _depth(context: Context) -> str:
    """The deepest cut that leaves a readable number of layers."""
    layers = {str(layer) for layer in gradient_rows(context.run)["layer"]}
    if len(layers) <= READABLE or depths(context.run) == 1:
        return EVERY
    fits = [
        n
        for n in range(1, depths(context.run))
        if len({cut(layer, n) for layer in layers}) <= READABLE
    ]
    return str(max(fits, default=1))


def heat_style(rows: int) -> dict[str, str]:
    """Height of a heat map of so many layers."""
    return {"height": f"{min(1100, 140 + 15 * rows)}px"}


def depth_of(depth: str) -> int | None:
    """Returns the depth that the control of the module tree selects; None: all levels."""
    return None if depth == EVERY else int(depth)
