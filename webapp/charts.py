"""Tables in, Plotly figures out. No Dash, no analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.theme import Theme, template, tokens

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Beside its colour a line has a pattern and a marker: never colour alone."""
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross")

MOST_LINES = 12
"""More lines than this cannot be told apart; the ones with the greatest norm are drawn."""


def total_norms(norms: pd.DataFrame, theme: Theme, *, log: bool) -> go.Figure:
    """Norm of the whole gradient per step, a line per rank.

    `norms` has the columns rank, step and norm, see `analysis.gradients.gradient_norms`.
    """
    figure = _figure(theme, "gradient norm (L2)", log=log)
    by_rank = {int(rank): rows for rank, rows in norms.groupby("rank", sort=True)}
    for position, (rank, rows) in enumerate(by_rank.items()):
        _line(figure, rows["step"], rows["norm"], f"rank {rank}", position, rank, theme)
    _mark_missing(figure, norms, theme)
    return figure


def parameter_norms(gradients: pd.DataFrame, rank: int, theme: Theme, *, log: bool) -> go.Figure:
    """Norm per step of a rank's parameters, a line each: those with the greatest norms.

    `gradients` has the columns rank, step, parameter and norm, see `analysis.gradients.gradients`.
    """
    figure = _figure(theme, "gradient norm (L2)", log=log)
    mine = gradients[gradients["rank"] == rank]
    largest = mine.groupby("parameter")["norm"].max().sort_values(ascending=False)
    by_name = dict(iter(mine.groupby("parameter")))
    for position, name in enumerate(largest.index[:MOST_LINES]):
        rows = by_name[name]
        _line(figure, rows["step"], rows["norm"], str(name), position, rank, theme)
    _mark_missing(figure, mine, theme)
    return figure


def compared_norms(table: pd.DataFrame, rank: int, theme: Theme) -> go.Figure:
    """Norm of the whole gradient per step of a rank, of the baseline and of the run.

    `table` is that of `analysis.diff.compare`.
    """
    figure = _figure(theme, "gradient norm (L2)", log=False)
    mine = table[(table["kind"] == "gradient") & (table["rank"] == rank)]
    colour = tokens()[theme]
    figure.update_layout(colorway=[colour["muted"], colour["accent"]])
    for position, (side, label) in enumerate((("base", "baseline"), ("run", "this run"))):
        squares = mine.assign(square=mine[side] ** 2).groupby("step")["square"]
        norm = np.sqrt(squares.sum(min_count=1))
        _line(figure, norm.index.to_series(), norm, label, position, rank, theme)
    return figure


def _figure(theme: Theme, title: str, *, log: bool) -> go.Figure:
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    figure.update_xaxes(title_text="step", tickformat="d", rangemode="tozero")
    figure.update_yaxes(title_text=title, type="log" if log else "linear")
    if log:
        figure.update_yaxes(dtick=1)
    else:
        figure.update_yaxes(rangemode="tozero")
    return figure


def _line(
    figure: go.Figure, step: pd.Series, norm: pd.Series, name: str, position: int, rank: int,
    theme: Theme,
) -> None:  # fmt: skip
    # Lists, not arrays: 64-bit integers reach the browser as a slow detour anyway.
    steps: list[Any] = [int(value) for value in step]
    values = [None if not np.isfinite(value) else float(value) for value in norm]
    colours = figure.layout.colorway or template(theme).layout.colorway
    few = len(steps) <= 200
    figure.add_scatter(
        x=steps,
        y=values,
        name=name,
        mode="lines+markers" if few else "lines",
        line={
            "width": 1.5,
            "color": colours[position % len(colours)],
            "dash": DASHES[position % len(DASHES)],
        },
        marker={"size": 5, "symbol": MARKERS[position % len(MARKERS)]},
        customdata=[rank] * len(steps),
        hovertemplate=f"<b>{_escaped(name)}</b><br>rank {rank}, step %{{x}}<br>norm %{{y:.4g}}"
        "<extra></extra>",
    )


def _mark_missing(figure: go.Figure, rows: pd.DataFrame, theme: Theme) -> None:
    """NaN and infinite norms have no place on the axis; a red cross at its foot says where."""
    wrong = rows[~np.isfinite(rows["norm"])]
    if "missing" in wrong and wrong["missing"].dtype == bool:
        wrong = wrong[~wrong["missing"]]  # None is no gradient, not a wrong one
    if wrong.empty:
        return
    figure.add_scatter(
        x=[int(step) for step in wrong["step"]],
        y=[0.02] * len(wrong),
        yaxis="y2",
        name="NaN or infinite",
        mode="markers",
        marker={"symbol": "x", "size": 9, "color": tokens()[theme]["bad"]},
        customdata=[int(rank) for rank in wrong["rank"]],
        hovertemplate="<b>NaN or infinite</b><br>rank %{customdata}, step %{x}<extra></extra>",
    )
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False})


def _escaped(text: str) -> str:
    """Text within a hover template: neither markup nor a placeholder."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("%{", "%&#123;")
