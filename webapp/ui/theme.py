"""The design tokens of the style sheet, as Plotly sees them: one template per theme."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go

from lanescope.webapp.ui.colours import SANS, Theme, tokens

GRAPH_CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displayModeBar": True,
    "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d"],
    "responsive": True,
    "toImageButtonOptions": {"format": "svg"},
    # chart_pictures.js saves the other one.
    "locales": {"en-US": {"dictionary": {"Download plot": "Download as SVG (with Shift: PNG)"}}},
}
"""Of every Plotly chart on every page."""

EITHER = "#808792"
"""Of words where it is not known which theme is on: a grey that can be read on both."""


_SERIES: dict[Theme, list[str]] = {
    "light": ["#332288", "#117733", "#44aa99", "#5fa8d3", "#999933", "#aa4499"],
    "dark": ["#77aadd", "#44bb99", "#99ddff", "#bbcc33", "#eedd88", "#ffaabb"],
}
"""Colours of ranks and other series: Paul Tol's "muted" and "light" schemes, which remain
distinct with the common colour-blindnesses. None of them means a phase or a fault."""

SEQUENTIAL: dict[Theme, str] = {"light": "Viridis_r", "dark": "Viridis"}
"""Colour scale of heat maps: perceptual, and monotonic in lightness away from the ground."""


@lru_cache(maxsize=2)
def template(theme: Theme) -> go.layout.Template:
    """Returns the template of every chart: the page's fonts and colours, hairlines, no junk."""
    colour = tokens()[theme]
    axis = {
        "gridcolor": colour["line"],
        "linecolor": colour["line"],
        "zeroline": False,
        "showline": True,
        "ticks": "",
        "automargin": True,
        "ticklabeloverflow": "allow",  # there is room: none needs to be measured
        "title": {"font": {"color": colour["muted"], "size": 13}, "standoff": 8},
        "tickfont": {"color": colour["muted"], "size": 12},
        "exponentformat": "power",
    }
    scale = {
        "title": {"font": {"color": colour["muted"], "size": 12}},
        "tickfont": {"color": colour["muted"], "size": 12},
        "ticklabeloverflow": "allow",
    }
    return go.layout.Template(
        layout={
            "font": {"family": SANS, "size": 13, "color": colour["ink"]},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": _SERIES[theme],
            "xaxis": axis,
            "yaxis": axis,
            "hovermode": "closest",
            "shapedefaults": {"line": {"color": colour["muted"]}},
            "hoverlabel": {
                "bgcolor": colour["panel"],
                "bordercolor": colour["line"],
                "font": {"family": SANS, "size": 12, "color": colour["ink"]},
                "align": "left",
            },
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "xanchor": "left",
                "yanchor": "bottom",
                "font": {"color": colour["muted"], "size": 12},
            },
            # Room for most labels: for longer ones Plotly lays out the whole chart again.
            "margin": {"l": 64, "r": 32, "t": 36, "b": 44},
            "modebar": {
                "orientation": "v",  # in the margin: a legend above the chart is not under them
                "bgcolor": "rgba(0,0,0,0)",
                "color": colour["muted"],
                "activecolor": colour["accent"],
            },
        },
        # A point on the edge of the axes is drawn whole.
        data={"heatmap": [{"colorbar": scale}], "scatter": [{"cliponaxis": False}]},
    )


POWERS: dict[str, Any] = {"dtick": 1, "exponentformat": "power", "tickfont": {"size": 10}}
"""Of a logarithmic axis with a tick per decade. Plotly writes powers of ten a quarter larger than
it is set to; like this they are as large as the numbers on other axes."""


def step_axis(steps: Iterable[int]) -> dict[str, Any]:
    """Returns how an axis of steps has its ticks: whole numbers, none of them twice.

    Where few steps are shown Plotly would put ticks between them, which all round to a step.
    """
    known = list(steps)
    few = bool(known) and max(known) - min(known) <= 12
    # None before the first or after the last: the room beside them has no steps.
    ticks = {"tickvals": list(range(min(known), max(known) + 1))} if few else {}
    return {"title_text": "step", "tickformat": "~g", **ticks}
