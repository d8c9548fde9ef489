"""Tables in, Plotly figures out. No Dash, no analysis."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import ceil, floor
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.runs.types import Float64Array
from lanescope.webapp.runs.units import duration
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import EITHER, POWERS, step_axis, template

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""Beside its colour a line has a pattern and a marker: never colour alone."""
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
"""Colours, patterns and markers differ in number: the seventh line is not the first one again."""

MAX_LINES = 12
"""More lines than this cannot be distinguished; the ones with the greatest norm are drawn."""

MAX_MARKERS = 100
"""Points of a chart that have a marker each: every marker is an element of the page, which has
six charts and 3,000 elements at most."""

MAX_SHARE_BARS = 32
"""Bars of a chart that has one per rank or stream; more are thinner than their names."""

MAX_HEAT_ROWS = 240
MAX_HEAT_COLUMNS = 200
"""Rows and columns drawn of a heat map; of more, the greatest of each bin."""

FROM_ZERO: dict[str, Any] = {"autorangeoptions": {"include": 0}}
"""An axis that shows 0, with room beside it, unlike "tozero": on the very edge a point is half cut
off, and Plotly's handles for dragging an axis take the clicks on it."""


BUTTONS_ABOVE: dict[str, Any] = {"modebar_orientation": "h"}
"""Layout of a figure with a colour bar or a second axis where the buttons stand otherwise."""


def empty_figure(words: str) -> go.Figure:
    """Returns words in the place of a chart: an empty figure would show bare axes."""
    figure = go.Figure(layout={"template": go.layout.Template()})  # Plotly's own has 7 kB
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis_visible=False,
        yaxis_visible=False,
        modebar_remove=["toImage", "zoom", "pan", "zoomin", "zoomout", "resetscale"],
    )
    text = "<br>".join(textwrap.wrap(escaped(words), 90))
    figure.add_annotation(text=text, showarrow=False, font={"color": EITHER})
    return figure


def step_figure(theme: Theme, title: str, steps: pd.Series, *, log: bool) -> go.Figure:
    """Returns an empty figure over the steps; `log` is of its vertical axis."""
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    known = [int(step) for step in steps]
    # Steps that begin far from 0 would be squeezed into the far end.
    near = not known or min(known) <= max(known) - min(known)
    figure.update_xaxes(step_axis([0, *known] if near else known), **(FROM_ZERO if near else {}))
    figure.update_yaxes(title_text=title, type="log" if log else "linear")
    if log:
        figure.update_yaxes(POWERS)
    else:
        figure.update_yaxes(**FROM_ZERO)
    return figure


def line_at(position: int, theme: Theme, colours: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns colour, pattern and width of the line at a position among several of a chart."""
    palette = colours or template(theme).layout.colorway
    return {
        "width": 1.5,
        "color": palette[position % len(palette)],
        "dash": _DASHES[position % len(_DASHES)],
    }


def marked_line(
    position: int, theme: Theme, colours: Sequence[str] | None = None, size: int = 5
) -> dict[str, Any]:
    """Returns the look of the line at a position, with markers of `size` px at its points."""
    marker = {"size": size, "symbol": _MARKERS[position % len(_MARKERS)]}
    return {
        "mode": "lines+markers",
        "line": line_at(position, theme, colours),
        "marker": marker,
    }


def add_norm_line(
    figure: go.Figure,
    step: pd.Series,
    norm: pd.Series,
    name: str,
    position: int,
    rank: int,
    theme: Theme,
) -> None:
    """Adds the norm of a rank by step; `position` chooses colour, pattern and marker."""
    # Lists, not arrays: 64-bit integers reach the browser as a slow detour anyway.
    steps: list[Any] = [int(value) for value in step]
    values = [None if not np.isfinite(value) else float(value) for value in norm]
    figure.add_scatter(
        x=steps,
        y=values,
        name=name,
        **marked_line(position, theme, figure.layout.colorway),
        customdata=[rank] * len(steps),
        hovertemplate=f"<b>{escaped(name)}</b><br>rank {rank}, step %{{x}}<br>norm %{{y:.4g}}"
        "<extra></extra>",
    )


def few_markers(figure: go.Figure) -> None:
    """Removes the markers of lines that have more than MAX_MARKERS points together."""
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    if sum(len(trace.x) for trace in lines) > MAX_MARKERS:
        for trace in lines:
            trace.mode = "lines"


def mark_missing(figure: go.Figure, rows: pd.DataFrame, theme: Theme) -> None:
    """Marks NaN and infinite norms, which have no place on the axis, by a red cross at its foot."""
    wrong = rows[~np.isfinite(rows["norm"])]
    if "missing" in wrong and wrong["missing"].dtype == bool:
        wrong = wrong[~wrong["missing"]]  # None means without gradient, which is not wrong
    if wrong.empty:
        return
    add_at_foot(
        figure,
        [int(step) for step in wrong["step"]],
        0.02,
        name="NaN or infinite",
        marker={"symbol": "x", "size": 9, "color": tokens()[theme]["bad"]},
        customdata=[int(rank) for rank in wrong["rank"]],
        hovertemplate="<b>NaN or infinite</b><br>rank %{customdata}, step %{x}<extra></extra>",
    )


def add_at_foot(figure: go.Figure, x: Sequence[Any], height: float, **trace: Any) -> None:
    """Adds markers for values that have no place on the vertical axis, such as NaN.

    They are at `height`, a share of the chart's, on a hidden second axis; `trace`: of a scatter.
    """
    figure.add_scatter(x=x, y=[height] * len(x), yaxis="y2", mode="markers", **trace)
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False})


def escaped(text: str) -> str:
    """Returns the text within a hover template: neither markup nor a placeholder."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("%{", "%&#123;")


def greatest_rows(table: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Returns the MAX_SHARE_BARS rows with the greatest of `values`, in the order of `table`."""
    return table.loc[values.nlargest(MAX_SHARE_BARS).index.sort_values()]


def share_bars(
    names: Sequence[str],
    table: pd.DataFrame,
    whole: str,
    parts: Sequence[tuple[str, str, str, str]],
    title: str,
    theme: Theme,
) -> go.Figure:
    """Returns a bar per row of `table` that adds up to the time in its column `whole`, ns.

    `parts`: column, words, token and pattern of each part, for never colour alone.
    """
    colours = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "barmode": "stack"})
    for column, words, token, pattern in parts:
        figure.add_bar(
            y=list(names),
            x=(table[column] / table[whole].clip(lower=1) * 100).tolist(),
            customdata=[duration(value) for value in table[column]],
            name=words,
            orientation="h",
            marker={
                "color": colours[token],
                "pattern": {"shape": pattern, "size": 6, "solidity": 0.25},
                "line": {"width": 0},
            },
            hovertemplate=f"<b>%{{y}}</b> {words}<br>%{{x:.3g}} %, %{{customdata}}<extra></extra>",
        )
    figure.update_layout(bargap=0.35, legend={"traceorder": "normal"})
    figure.update_xaxes(title_text=title, range=[0, 100])
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def rank_rows(figure: go.Figure) -> None:
    """Sets the vertical axis of a heat map with a row per rank, the first one on top."""
    # The browser measures each name on an axis.
    figure.update_yaxes(autorange="reversed", type="category", nticks=20, showgrid=False)


def colour_bar(title: str, **more: Any) -> dict[str, Any]:
    """Returns the bar beside a heat map; `more` are further settings of Plotly's."""
    words = {"text": title, "side": "right", "font": {"size": 12}}
    return {"title": words, "thickness": 10, "outlinewidth": 0, **more}


def bins(count: int, most: int) -> list[tuple[int, int]]:
    """Returns (first position, positions) of at most `most` bins, all but the last of one size."""
    size = -(-count // most) or 1
    return [(low, min(size, count - low)) for low in range(0, count, size)]


def greatest_of_bins(values: Float64Array, parts: Sequence[tuple[int, int]], axis: int = 0) -> Any:
    """Returns the greatest of each bin, infinite ones among them; NaN: none in it has a value."""
    if len(parts) == values.shape[axis] or not values.size:
        return values
    return np.fmax.reduceat(values, [low for low, _ in parts], axis=axis)


def powers(low: float, high: float, most: int) -> dict[str, Any]:
    """Returns ticks of a colour bar in logarithms between `low` and `high`: powers of ten, some
    `most` of them."""
    ticks = list(range(ceil(low), floor(high) + 1))
    ticks = ticks[:: -(-len(ticks) // most) or 1]
    texts = [f"10<sup>{tick}</sup>" for tick in ticks]
    return {"tickvals": ticks, "ticktext": texts}
