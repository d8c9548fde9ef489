"""Figures of gradients by layer and step: curves, picture by depth. No Dash, no analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from lanescope.webapp.plugins.gradients.charts_heat import (
    others,
)
from lanescope.webapp.plugins.gradients.charts_layers import (
    LEVEL,
    MAX_SLANTED,
    SLANTED,
    layer_axis,
    layer_names,
)
from lanescope.webapp.runs.types import Float64Array
from lanescope.webapp.ui import charts
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import POWERS, SEQUENTIAL, step_axis, template

MAX_DECADES_NAMED = 7
"""Powers of ten that there is room for beside a chart; of more, every second or third is named."""


def layer_curves(
    curves: Mapping[str, pd.Series],
    title: str,
    chosen: int | None,
    theme: Theme,
    band: tuple[float, float] | None = None,
) -> go.Figure:
    """Returns step -> value of one layer, a line per key; zeros have no place on the axis and are
    gaps."""
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
    charts.few_markers(figure)
    steps = [int(step) for one in curves.values() for step in one.index]
    figure.update_xaxes(step_axis(steps if chosen is None else [*steps, chosen]))
    return figure


def depth_lines(
    lines: Mapping[str, pd.Series],
    title: str,
    theme: Theme,
    band: tuple[float, float] | None = None,
    decay: float | None = None,
) -> go.Figure:
    """Returns layer -> value, from the first layer on the left to the last on the right, a line per
    key.

    The keys are steps from early to late, in colours from faint to strong, or `QUANTILES`, with the
    area between the 10 % and the 90 % filled; one that is named "baseline" is dotted.
    `decay` draws the first line's last value times decay per layer, towards the input. Where no
    line has a value, a mark at the foot says so. Of more than MAX_HEAT_ROWS layers the
    greatest of bins.
    """
    figure = _logarithmic(lines, title, theme, band)
    colour = tokens()[theme]
    first = next(iter(lines.values()), pd.Series(dtype="float64"))
    layers = layer_names(first.index)
    parts = charts.bins(len(layers), charts.MAX_HEAT_ROWS)
    names = [layers[low] for low, _ in parts]
    values = {
        name: charts.greatest_of_bins(series.to_numpy(float), parts)
        for name, series in lines.items()
    }
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
            hovertemplate=f"<b>%{{x}}</b>{others(parts)}<br>{name}: %{{y:.4g}}<extra></extra>",
        )
    charts.few_markers(figure)
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
            charts.add_at_foot(figure, at, 0.02, name=words, marker=marker, hovertemplate=hover)
    axis = layer_axis(names, MAX_SLANTED, SLANTED)
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
    """Returns step -> what a thread contributed, a line per key; `customdata` is the key."""
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
    charts.few_markers(figure)
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
    each = {"dtick": max(1, round(decades / MAX_DECADES_NAMED))}
    figure.update_yaxes(POWERS | each if decades > 1.5 else {"dtick": "D2"})
    if band is not None:
        figure.add_hrect(
            y0=band[0],
            y1=band[1],
            line_width=0,
            fillcolor=tokens()[theme]["good"],
            opacity=0.08,
        )
    return figure


def _positive(series: Iterable[float]) -> list[float | None]:
    return [float(f"{v:.5g}") if np.isfinite(v) and v > 0 else None for v in series]


def _dashed(name: str, position: int, theme: Theme) -> dict[str, Any]:
    """Of the curve at a position among several; a baseline's stands back."""
    if name == "baseline":
        return {"width": 1.5, "dash": "dot", "color": tokens()[theme]["muted"]}
    return charts.line_at(position, theme)


def total_norms(norms: pd.DataFrame, theme: Theme, *, log: bool) -> go.Figure:
    """Returns the norm of the whole gradient per step, a line per rank: of those in
    `farthest_ranks`.

    `norms` has the columns rank, step and norm, see `parameter_history.gradient_norms`.
    """
    norms = norms[norms["rank"].isin(farthest_ranks(norms))]
    figure = charts.step_figure(theme, "gradient norm (L2)", norms["step"], log=log)
    by_rank = {int(rank): rows for rank, rows in norms.groupby("rank", sort=True)}
    for position, (rank, rows) in enumerate(by_rank.items()):
        charts.add_norm_line(
            figure, rows["step"], rows["norm"], f"rank {rank}", position, rank, theme
        )
    charts.few_markers(figure)
    charts.mark_missing(figure, norms, theme)
    return figure


def farthest_ranks(norms: pd.DataFrame) -> list[int]:
    """Returns all ranks, or the MAX_LINES whose norms are farthest from the median over ranks."""
    ranks = [int(rank) for rank in norms["rank"].unique()]
    if len(ranks) <= charts.MAX_LINES:
        return ranks
    usual = norms.groupby("step")["norm"].transform("median")
    away = (norms["norm"] - usual).abs().where(norms["norm"].notna(), np.inf)
    most = away.groupby(norms["rank"]).max().fillna(0.0)
    return [
        int(rank)
        for rank in most.sort_values(ascending=False, kind="stable").index[: charts.MAX_LINES]
    ]


def parameter_norms(gradients: pd.DataFrame, rank: int, theme: Theme, *, log: bool) -> go.Figure:
    """Returns the norm per step of a rank's parameters, a line each: those with the greatest norms.

    `gradients` has the columns rank, step, parameter and norm, see `parameter_history.gradients`.
    """
    mine = gradients[gradients["rank"] == rank]
    figure = charts.step_figure(theme, "gradient norm (L2)", mine["step"], log=log)
    largest = mine.groupby("parameter")["norm"].max().sort_values(ascending=False)
    by_name = dict(iter(mine.groupby("parameter")))
    for position, name in enumerate(largest.index[: charts.MAX_LINES]):
        rows = by_name[name]
        charts.add_norm_line(figure, rows["step"], rows["norm"], str(name), position, rank, theme)
    charts.few_markers(figure)
    charts.mark_missing(figure, mine, theme)
    return figure
