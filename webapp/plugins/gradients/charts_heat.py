"""Heat maps of gradients: layers by step, and by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.gradients.charts_layers import (
    MAX_LAYER_NAMES,
    factor,
    layer_axis,
    layer_names,
    plain_cells,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.types import BoolArray
from lanescope.webapp.ui.charts import (
    BUTTONS_ABOVE,
    MAX_HEAT_COLUMNS,
    MAX_HEAT_ROWS,
    bins,
    colour_bar,
    greatest_of_bins,
    powers,
)
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import SEQUENTIAL, template

_MIN_DECADES = 2.0
"""That the colours span, so that equal norms look equal."""

BELOW = 0.15
"""Decades of padding below the minimum, so that it differs from missing data."""

MAX_DECADES = 2.0
MIN_APART = 0.05
"""In logarithms, how far from 1 the colours of ratios reach at most and at least."""

MIN_WRITTEN = 0.004
"""In logarithms, from which distance of 1 on a ratio is written into its cell: 1 %."""


def layer_heat(
    table: pd.DataFrame,
    title: str,
    theme: Theme,
    across: str = "step",
    none: str = "no gradient",
) -> go.Figure:
    """Returns a measure by layer and step, as `layer_map` has it, in logarithms.

    Zeros, infinite values and what has no gradient have no logarithm, and colours of their own.
    `across` names the columns, `none` what NaN means. Of more than MAX_HEAT_ROWS layers or
    MAX_HEAT_COLUMNS columns a cell is a bin with its greatest value, see `greatest_cell`.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    rows, columns = bins(len(table), MAX_HEAT_ROWS), bins(table.shape[1], MAX_HEAT_COLUMNS)
    values = greatest_of_bins(greatest_of_bins(table.to_numpy(float), rows), columns, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values).astype(np.float32)
    finite = logs[np.isfinite(logs)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
    if high - low < _MIN_DECADES:
        low, high = (low + high - _MIN_DECADES) / 2, (low + high + _MIN_DECADES) / 2
    names = layer_names(table.index)
    shown = [names[low] for low, _ in rows]
    common: dict[str, Any] = {
        "x": [str(table.columns[low]) for low, _ in columns],
        "y": shown,
        "xgap": 1 if len(columns) <= 120 else 0,
        "ygap": 1 if values.shape[0] <= MAX_HEAT_ROWS // 2 else 0,  # thin rows would be half gap
        "hoverongaps": False,
    }
    hover = f"<b>%{{y}}</b>{others(rows)}<br>{across} %{{x}}{others(columns)}<br>%{{text}}"
    figure.add_heatmap(
        z=np.where(np.isfinite(logs), logs, np.nan),
        text=[[units.number(value, 4) for value in row] for row in values],
        colorscale=SEQUENTIAL[theme],
        zmin=low - BELOW * (high - low),
        zmax=high,
        colorbar=colour_bar(title, **powers(low, high, 8)),
        hovertemplate=f"{hover}<extra></extra>",
        **common,
    )
    for wrong, words, ink in (
        (values == 0, "zero", colour["bad"]),
        (np.isinf(values), "NaN or infinite", colour["bad"]),
        (np.isnan(values), none, colour["line"]),
    ):
        if wrong.any():
            _one_colour(figure, wrong, words, ink, hover, common)
    _heat_axes(figure, shown, across)
    return figure


def _one_colour(
    figure: go.Figure, cells: BoolArray, words: str, ink: str, hover: str, common: dict[str, Any]
) -> None:
    """Adds the cells that have no logarithm, in a colour of their own."""
    figure.add_heatmap(
        z=np.where(cells, np.float32(1), np.float32(np.nan)),
        name=words,
        colorscale=[[0, ink], [1, ink]],
        showscale=False,
        hovertemplate=hover.replace("%{text}", f"{words}<extra></extra>"),
        **common,
    )


def others(parts: Sequence[tuple[int, int]]) -> str:
    """Says beside the first of a bin how many follow it."""
    return f" and the next {parts[0][1] - 1}" if parts and parts[0][1] > 1 else ""


def greatest_cell(table: pd.DataFrame, layer: str, column: str) -> tuple[str, Any] | None:
    """Returns layer and column of the greatest value in a cell of `layer_heat`; None: no such cell.

    `layer` and `column` are those that the axes name: the first ones of the cell's bins.
    """
    found = []
    for names, name, most in (
        (layer_names(table.index), layer, MAX_HEAT_ROWS),
        ([str(one) for one in table.columns], column, MAX_HEAT_COLUMNS),
    ):
        parts = {names[low]: slice(low, low + count) for low, count in bins(len(names), most)}
        if name not in parts:
            return None
        found.append(parts[name])
    cell = table.iloc[found[0], found[1]]
    values = cell.fillna(-1).to_numpy(float)
    row, at = np.unravel_index(int(values.argmax()), values.shape)
    return str(cell.index[row]), cell.columns[at]


def rank_heat(
    ratios: pd.DataFrame, steps: pd.DataFrame, rank: int | None, theme: Theme
) -> go.Figure:
    """Returns ratio of norms to the median of ranks, by layer and rank, or by layer and step of
    `rank`.

    1 has the colour of the panel; `customdata` names the rank, and the step of `steps`.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    values = ratios.to_numpy(float)
    with np.errstate(divide="ignore"):
        logs = np.clip(np.log10(values), -MAX_DECADES, MAX_DECADES)
    most = max(MIN_APART, float(np.nanmax(np.abs(logs), initial=0.0)))
    ticks = [-most, 0.0, most]
    words = [
        [
            "" if np.isnan(value) or abs(log) < MIN_WRITTEN else factor(value)
            for value, log in zip(*pair, strict=True)
        ]
        for pair in zip(values, logs, strict=True)
    ]
    columns = [int(one) for one in ratios.columns]
    # Words, not numbers: of a heat map's arrays nothing comes back with a click.
    places = [
        [
            f"rank {one if rank is None else rank}, step {int(step)}"
            for one, step in zip(columns, row, strict=True)
        ]
        for row in steps.to_numpy()
    ]
    figure.add_heatmap(
        z=plain_cells(logs),
        x=[f"rank {one}" if rank is None else str(one) for one in columns],
        y=layer_names(ratios.index),
        customdata=places,
        text=words,
        texttemplate="%{text}" if len(columns) <= 16 else None,
        textfont={"size": 11},
        hovertext=[[factor(value) for value in row] for row in values],
        colorscale=[[0, colour["collective"]], [0.5, colour["panel"]], [1, colour["backward"]]],
        zmin=-most,
        zmax=most,
        xgap=1 if len(columns) <= 120 else 0,
        ygap=1,
        hoverongaps=False,
        colorbar=colour_bar(
            "ratio to the median", tickvals=ticks, ticktext=[factor(10**tick) for tick in ticks]
        ),
        hovertemplate="<b>%{y}</b><br>%{customdata}<br>%{hovertext} the median<extra></extra>",
    )
    _heat_axes(figure, ratios.index, "" if rank is None else f"step of rank {rank}")
    return figure


def _heat_axes(figure: go.Figure, layers: Sequence[str], across: str) -> None:
    """Sets the axes: layers from top to bottom, columns named `across` from left to right."""
    figure.update_layout(BUTTONS_ABOVE)
    figure.update_xaxes(title_text=across, type="category", nticks=20, showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, **layer_axis(layers, MAX_LAYER_NAMES))
