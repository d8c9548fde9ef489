"""Figures of gradients by layer: heat map, curves, picture by depth. No Dash, no analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from lanescope.webapp.runs import units
from lanescope.webapp.runs.types import BoolArray, Float64Array
from lanescope.webapp.ui.charts import (
    DASHES,
    MAX_LINES,
    add_at_foot,
    colour_bar,
    few_markers,
    line,
    mark_missing,
    powers,
    step_figure,
)
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import POWERS, SEQUENTIAL, step_axis, template

MODEL = "(model)"
MAX_ROWS, MAX_COLUMNS = 240, 200
"""Layers and steps drawn of a heat map; of more, the greatest of each bin."""
MIN_DECADES = 2.0
"""That the colours span, so that equal norms look equal."""
BELOW = 0.15
"""Decades of padding below the minimum, so that it differs from missing data."""
MAX_NAMES, MAX_SLANTED, SLANTED = 64, 24, 20
"""Layers named beside a heat map, and below a profile; letters that there is room for there."""
LEVEL = 120
"""Letters that fit below a profile side by side."""
MAX_DECADES, MIN_APART = 2.0, 0.05
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
    """A measure by layer and step, as `layer_map` has it, in logarithms.

    Zeros, infinite values and what has no gradient have no logarithm, and colours of their own.
    `across` names the columns, `none` what NaN means. Of more than MAX_ROWS layers or MAX_COLUMNS
    columns a cell is a bin
    with its greatest value, see `greatest_cell`.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    rows, columns = bins(len(table), MAX_ROWS), bins(table.shape[1], MAX_COLUMNS)
    values = _greatest(_greatest(table.to_numpy(float), rows), columns, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(values).astype(np.float32)
    finite = logs[np.isfinite(logs)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
    if high - low < MIN_DECADES:
        low, high = (low + high - MIN_DECADES) / 2, (low + high + MIN_DECADES) / 2
    names = layer_names(table.index)
    shown = [names[low] for low, _ in rows]
    common: dict[str, Any] = {
        "x": [str(table.columns[low]) for low, _ in columns],
        "y": shown,
        "xgap": 1 if len(columns) <= 120 else 0,
        "ygap": 1 if values.shape[0] <= MAX_ROWS // 2 else 0,  # thin rows would be half gap
        "hoverongaps": False,
    }
    hover = f"<b>%{{y}}</b>{_more(rows)}<br>{across} %{{x}}{_more(columns)}<br>%{{text}}"
    ticks = list(range(int(np.ceil(low)), int(np.floor(high)) + 1))
    ticks = ticks[:: max(1, len(ticks) // 8)]
    figure.add_heatmap(
        z=np.where(np.isfinite(logs), logs, np.nan),
        text=[[units.number(value, 4) for value in row] for row in values],
        colorscale=SEQUENTIAL[theme],
        zmin=low - BELOW * (high - low),
        zmax=high,
        colorbar=colour_bar(title, **powers(ticks)),
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


def bins(count: int, most: int) -> list[tuple[int, int]]:
    """Returns (first position, positions) of at most `most` bins, all but the last of one size."""
    size = -(-count // most) or 1
    return [(low, min(size, count - low)) for low in range(0, count, size)]


def _more(parts: Sequence[tuple[int, int]]) -> str:
    """Says beside the first of a bin how many follow it."""
    return f" and the next {parts[0][1] - 1}" if parts and parts[0][1] > 1 else ""


def greatest_cell(table: pd.DataFrame, layer: str, column: str) -> tuple[str, Any] | None:
    """Returns layer and column of the greatest value in a cell of `layer_heat`; None: no such cell.

    `layer` and `column` are those that the axes name: the first ones of the cell's bins.
    """
    found = []
    for names, name, most in (
        (layer_names(table.index), layer, MAX_ROWS),
        ([str(one) for one in table.columns], column, MAX_COLUMNS),
    ):
        parts = {names[low]: slice(low, low + count) for low, count in bins(len(names), most)}
        if name not in parts:
            return None
        found.append(parts[name])
    cell = table.iloc[found[0], found[1]]
    values = cell.fillna(-1).to_numpy(float)
    row, at = np.unravel_index(int(values.argmax()), values.shape)
    return str(cell.index[row]), cell.columns[at]


def _greatest(values: Float64Array, parts: Sequence[tuple[int, int]], axis: int = 0) -> Any:
    """Returns the greatest of each bin, infinite ones among them; NaN: none in it has a value."""
    if len(parts) == values.shape[axis] or not values.size:
        return values
    return np.fmax.reduceat(values, [low for low, _ in parts], axis=axis)


def rank_heat(
    ratios: pd.DataFrame, steps: pd.DataFrame, rank: int | None, theme: Theme
) -> go.Figure:
    """Ratio of norms to the median of ranks, by layer and rank, or by layer and step of `rank`.

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
            "" if np.isnan(value) or abs(log) < MIN_WRITTEN else times(value)
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
        z=_plain(logs),
        x=[f"rank {one}" if rank is None else str(one) for one in columns],
        y=layer_names(ratios.index),
        customdata=places,
        text=words,
        texttemplate="%{text}" if len(columns) <= 16 else None,
        textfont={"size": 11},
        hovertext=[[times(value) for value in row] for row in values],
        colorscale=[[0, colour["collective"]], [0.5, colour["panel"]], [1, colour["backward"]]],
        zmin=-most,
        zmax=most,
        xgap=1 if len(columns) <= 120 else 0,
        ygap=1,
        hoverongaps=False,
        colorbar=colour_bar(
            "ratio to the median", tickvals=ticks, ticktext=[times(10**tick) for tick in ticks]
        ),
        hovertemplate="<b>%{y}</b><br>%{customdata}<br>%{hovertext} the median<extra></extra>",
    )
    _heat_axes(figure, ratios.index, "" if rank is None else f"step of rank {rank}")
    return figure


def _heat_axes(figure: go.Figure, layers: Sequence[str], across: str) -> None:
    """Sets the axes: layers from top to bottom, columns named `across` from left to right."""
    figure.update_xaxes(title_text=across, type="category", nticks=20, showgrid=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, **_layer_axis(layers, MAX_NAMES))


def layer_names(layers: Iterable[object]) -> list[str]:
    """What layers are called; the model itself has an empty path."""
    return [str(layer) or MODEL for layer in layers]


def times(ratio: float) -> str:
    """A ratio as a factor; infinite: of a norm that is NaN or infinite."""
    if np.isinf(ratio):
        return "NaN or infinite"
    return f"{float(f'{ratio:.3g}'):g} \N{MULTIPLICATION SIGN}"


def layer_curves(
    curves: Mapping[str, pd.Series],
    title: str,
    chosen: int | None,
    theme: Theme,
    band: tuple[float, float] | None = None,
) -> go.Figure:
    """Step -> value of one layer, a line per key; zeros have no place on the axis and are gaps."""
    figure = _logarithmic(curves, title, theme, band)
    colour = tokens()[theme]
    for position, (name, series) in enumerate(curves.items()):
        figure.add_scatter(
            x=[int(step) for step in series.index],
            y=_positive(series),
            name=name,
            mode="lines+markers",
            line=_dashed(name, position, theme),
            marker={"size": 5},
            hovertemplate=f"<b>{name}</b><br>step %{{x}}: %{{y:.3g}}<extra></extra>",
        )
    if chosen is not None:
        figure.add_vline(x=chosen, line={"color": colour["accent"], "width": 1})
    few_markers(figure)
    figure.update_xaxes(step_axis(int(step) for one in curves.values() for step in one.index))
    return figure


def depth_lines(
    lines: Mapping[str, pd.Series],
    title: str,
    theme: Theme,
    band: tuple[float, float] | None = None,
    decay: float | None = None,
) -> go.Figure:
    """Layer -> value, from the first layer on the left to the last on the right, a line per key.

    The keys are steps from early to late, in colours from faint to strong, or `QUANTILES`, with the
    area between the 10 % and the 90 % filled; one that is named "baseline" is dotted.
    `decay` draws the first line's last value times decay per layer, towards the input. Where no
    line has a value, a mark at the foot says so. Of more than MAX_ROWS layers the greatest of bins.
    """
    figure = _logarithmic(lines, title, theme, band)
    colour = tokens()[theme]
    first = next(iter(lines.values()), pd.Series(dtype="float64"))
    layers = layer_names(first.index)
    parts = bins(len(layers), MAX_ROWS)
    names = [layers[low] for low, _ in parts]
    values = {name: _greatest(series.to_numpy(float), parts) for name, series in lines.items()}
    own = [name for name in values if name != "baseline"]
    shades = sample_colorscale(SEQUENTIAL[theme], np.linspace(0.35, 1, len(own)).tolist())
    for name, line_of in values.items():
        figure.add_scatter(
            x=names,
            y=_positive(line_of),
            name=name,
            mode="lines+markers",
            line=_dashed(name, 0, theme)
            if name == "baseline"
            else {"width": 1.5, "color": shades[own.index(name)]},
            marker={"size": 5},
            fill="tonexty" if name in ("median", "90 %") else None,
            hovertemplate=f"<b>%{{x}}</b>{_more(parts)}<br>{name}: %{{y:.4g}}<extra></extra>",
        )
    few_markers(figure)
    if len(names) == len(layers):
        _decay_line(figure, names, next(iter(values.values()), np.empty(0)), decay, colour["warn"])
    table = np.array([values[name] for name in own]).reshape(len(own), len(names))
    for missing, words, symbol, ink in (
        (np.isnan(table).all(axis=0), "no gradient", "circle-open", colour["muted"]),
        (((table == 0) | np.isinf(table)).any(axis=0), "zero, NaN or infinite", "x", colour["bad"]),
    ):
        if own and missing.any():
            at = [name for name, one in zip(names, missing, strict=True) if one]
            hover = f"<b>%{{x}}</b><br>{words}<extra></extra>"
            marker = {"symbol": symbol, "size": 8, "color": ink}
            add_at_foot(figure, at, 0.02, name=words, marker=marker, hovertemplate=hover)
    axis = _layer_axis(names, MAX_SLANTED, SLANTED)
    letters = sum(len(text) + 2 for text in axis["ticktext"])
    figure.update_xaxes(**axis | {"categoryarray": names}, tickangle=-35 if letters > LEVEL else 0)
    return figure


def _decay_line(
    figure: go.Figure, names: Sequence[str], values: Float64Array, decay: float | None, ink: str
) -> None:
    known = values[(values > 0) & np.isfinite(values)]
    if decay is None or len(known) < 2:
        return
    left = [float(known[-1]) * decay ** (len(names) - 1 - i) for i in range(len(names))]
    least = float(known.min())  # in deep models it would fall far below the lines
    figure.add_scatter(
        x=list(names),
        y=[one if one >= least else None for one in left],
        name=f"\N{MULTIPLICATION SIGN} {decay:g} a layer",
        mode="lines",
        line={"width": 1, "dash": "dash", "color": ink},
        hoverinfo="skip",
    )


def thread_curves(curves: Mapping[str, pd.Series], title: str, theme: Theme) -> go.Figure:
    """Step -> what a thread contributed, a line per key; `customdata` is the key."""
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    for position, (name, series) in enumerate(curves.items()):
        figure.add_scatter(
            x=[int(step) for step in series.index],
            y=[float(value) if np.isfinite(value) else None for value in series],
            name=name,
            mode="lines+markers",
            line=_dashed(name, position, theme),
            marker={"size": 6},
            customdata=[name] * len(series),
            hovertemplate="<b>%{customdata}</b><br>step %{x}: %{y:.4g}<extra></extra>",
        )
    few_markers(figure)
    figure.update_xaxes(step_axis(int(step) for one in curves.values() for step in one.index))
    figure.update_yaxes(title_text=title, rangemode="tozero")
    return figure


def _logarithmic(
    lines: Mapping[str, pd.Series], title: str, theme: Theme, band: tuple[float, float] | None
) -> go.Figure:
    values = [v for series in lines.values() for v in series if np.isfinite(v) and v > 0]
    if band is not None:
        values += band
    decades = float(np.log10(max(values) / min(values))) if values else 0.0
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    figure.update_yaxes(title_text=title, type="log")
    figure.update_yaxes(POWERS if decades > 1.5 else {"dtick": "D2"})
    if band is not None:
        figure.add_hrect(
            y0=band[0],
            y1=band[1],
            line_width=0,
            fillcolor=tokens()[theme]["good"],
            opacity=0.08,
        )
    return figure


def _layer_axis(layers: Sequence[str], most: int, letters: int = 60) -> dict[str, Any]:
    """Names of layers along an axis, `most` of them, without what all begin with, which is its
    title; of longer ones the last letters.
    """
    names = layer_names(layers)
    ends = [name.split(".")[:-1] for name in (min(names, default=""), max(names, default=""))]
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
    shared = ".".join(one for one, _ in same) if len(names) > 1 else ""
    shown = names[:: -(-len(names) // most) or 1]
    short = [name[len(shared) + bool(shared) :] for name in shown]
    return {
        "type": "category",
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [
            one if len(one) <= letters else "\N{HORIZONTAL ELLIPSIS}" + one[-letters:]
            for one in short
        ],
        "title_text": f"in {shared}" if shared else "",
    }


def _positive(series: Iterable[float]) -> list[float | None]:
    return [float(f"{v:.5g}") if np.isfinite(v) and v > 0 else None for v in series]


def _plain(values: Any) -> Sequence[Sequence[float | None]]:
    return [[None if np.isnan(v) else float(v) for v in row] for row in values]


def _dashed(name: str, position: int, theme: Theme) -> dict[str, Any]:
    """Of the curve at a position among several; a baseline's stands back."""
    if name == "baseline":
        return {"width": 1.5, "dash": "dot", "color": tokens()[theme]["muted"]}
    palette = template(theme).layout.colorway
    dash = DASHES[position % len(DASHES)]
    return {"width": 1.5, "dash": dash, "color": palette[position % len(palette)]}


def total_norms(norms: pd.DataFrame, theme: Theme, *, log: bool) -> go.Figure:
    """Norm of the whole gradient per step, a line per rank: of those in `farthest_ranks`.

    `norms` has the columns rank, step and norm, see `analysis.gradients.gradient_norms`.
    """
    norms = norms[norms["rank"].isin(farthest_ranks(norms))]
    figure = step_figure(theme, "gradient norm (L2)", norms["step"], log=log)
    by_rank = {int(rank): rows for rank, rows in norms.groupby("rank", sort=True)}
    for position, (rank, rows) in enumerate(by_rank.items()):
        line(figure, rows["step"], rows["norm"], f"rank {rank}", position, rank, theme)
    few_markers(figure)
    mark_missing(figure, norms, theme)
    return figure


def farthest_ranks(norms: pd.DataFrame) -> list[int]:
    """Returns all ranks, or the MAX_LINES whose norms are farthest from the median over ranks."""
    ranks = [int(rank) for rank in norms["rank"].unique()]
    if len(ranks) <= MAX_LINES:
        return ranks
    usual = norms.groupby("step")["norm"].transform("median")
    away = (norms["norm"] - usual).abs().where(norms["norm"].notna(), np.inf)
    most = away.groupby(norms["rank"]).max().fillna(0.0)
    return [
        int(rank) for rank in most.sort_values(ascending=False, kind="stable").index[:MAX_LINES]
    ]


def parameter_norms(gradients: pd.DataFrame, rank: int, theme: Theme, *, log: bool) -> go.Figure:
    """Norm per step of a rank's parameters, a line each: those with the greatest norms.

    `gradients` has the columns rank, step, parameter and norm, see `analysis.gradients.gradients`.
    """
    mine = gradients[gradients["rank"] == rank]
    figure = step_figure(theme, "gradient norm (L2)", mine["step"], log=log)
    largest = mine.groupby("parameter")["norm"].max().sort_values(ascending=False)
    by_name = dict(iter(mine.groupby("parameter")))
    for position, name in enumerate(largest.index[:MAX_LINES]):
        rows = by_name[name]
        line(figure, rows["step"], rows["norm"], str(name), position, rank, theme)
    few_markers(figure)
    mark_missing(figure, mine, theme)
    return figure
