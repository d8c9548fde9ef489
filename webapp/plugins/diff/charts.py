"""How the difference between two runs grows: tables of `analysis.diff` in, Plotly figures out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.runs import units
from lanescope.webapp.ui import charts
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import step_axis, template

MAX_LAYERS = 60
"""Rows of the map; of more modules those with the greatest difference are shown."""


def growth_by_step(growth: pd.DataFrame, rank: int, theme: Theme) -> go.Figure:
    """Draws a rank's largest relative difference and share of differing tensors per step.

    `growth` is that of `analysis.diff.Comparison`. The difference is on a logarithmic axis, where
    0 has no place; what cannot be compared (NaN, another shape) is a cross at its foot.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    mine = growth[growth["rank"] == rank].groupby("step")
    sums = mine.agg(tensors=("tensors", "sum"), differing=("differing", "sum"))
    sums["largest"] = mine["largest"].max()
    steps = [int(step) for step in sums.index]
    finite = [float(v) if 0 < v < np.inf else None for v in sums["largest"]]
    share = [float(v) for v in 100 * sums["differing"] / sums["tensors"]]
    figure.add_scatter(
        x=steps,
        y=finite,
        name="largest relative difference",
        mode="lines+markers",
        marker={"size": 5},
        line={"width": 1.5, "color": colour["accent"]},
        hovertemplate="<b>step %{x}</b><br>largest relative difference %{y:.3g}<extra></extra>",
    )
    figure.add_scatter(
        x=steps,
        y=share,
        name="tensors not bitwise identical",
        yaxis="y2",
        mode="lines+markers",
        marker={"size": 5, "symbol": "square"},
        line={"width": 1.5, "dash": "dot", "color": colour["muted"]},
        hovertemplate="<b>step %{x}</b><br>%{y:.3g} % of the tensors are not bitwise identical"
        "<extra></extra>",
    )
    charts.few_markers(figure)
    odd = [step for step, v in zip(steps, sums["largest"], strict=True) if not np.isfinite(v)]
    if odd:
        _crosses(figure, odd, colour["bad"])
    figure.update_xaxes(step_axis(steps))
    figure.update_yaxes(
        title_text="relative difference",
        type="log",
        exponentformat="power",
        showticklabels=any(value is not None for value in finite),
    )
    figure.update_layout(
        charts.BUTTONS_ABOVE,
        yaxis2={
            "title": {"text": "tensors not bitwise identical, %"},
            "overlaying": "y",
            "side": "right",
            "range": [0, 102],
            "showgrid": False,
            "tickvals": [0, 25, 50, 75, 100],
        },
    )
    return figure


def _crosses(figure: go.Figure, steps: list[int], colour: str) -> None:
    figure.add_scatter(
        x=steps,
        y=[2.0] * len(steps),
        yaxis="y2",
        name="not comparable (NaN, shape)",
        mode="markers",
        marker={"symbol": "x", "size": 9, "color": colour},
        hovertemplate="<b>step %{x}</b><br>a tensor that cannot be compared<extra></extra>",
    )


def growth_by_layer(growth: pd.DataFrame, rank: int, theme: Theme) -> go.Figure:
    """Returns largest relative difference per module and step of a rank; modules as they first ran.

    The colour is logarithmic, that of what cannot be compared the last; a cell without any holds
    tensors whose bits are all equal, or none.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    mine = growth[(growth["rank"] == rank) & (growth["module"] != "")]
    worst = mine[mine["differing"] > 0].groupby("module")["largest"].max()
    shown = set(worst.sort_values(ascending=False, kind="stable").index[:MAX_LAYERS])
    begin = mine.groupby("module")["time_ns"].min().sort_values(kind="stable")
    modules = [name for name in begin.index if name in shown]
    steps = sorted(int(step) for step in mine["step"].unique())
    differs = mine[mine["differing"] > 0]
    places = zip(differs["module"], differs["step"], strict=True)
    cells = dict(zip(places, differs["largest"].astype(float), strict=True))
    finite = [v for v in worst if 0 < v < np.inf]
    least = np.log10(min(finite, default=1e-16)) - 1
    most = np.log10(max(finite, default=1.0)) + 1

    def height(value: float | None) -> float | None:
        if value is None:
            return None
        return most if value == np.inf else least if value == 0 else float(np.log10(value))

    def word(value: float | None) -> str:
        if value is None:
            return "bitwise identical"
        return "cannot be compared" if value == np.inf else f"differs by {units.number(value)}"

    rows = [[cells.get((name, step)) for step in steps] for name in modules]
    figure.add_heatmap(
        x=steps,
        y=[charts.escaped(name) for name in modules],
        z=[[height(cell) for cell in row] for row in rows],
        text=[[word(cell) for cell in row] for row in rows],
        zmin=least,
        zmax=most,
        showscale=bool(finite),
        colorscale=[[0, colour["panel"]], [0.5, colour["within"]], [1, colour["different"]]],
        xgap=1 if len(steps) <= 120 else 0,
        ygap=1,
        hovertemplate="<b>%{y}, step %{x}</b><br>%{text}<extra></extra>",
        colorbar=charts.colour_bar("relative difference", **charts.powers(least, most, 8)),
    )
    figure.update_layout(charts.BUTTONS_ABOVE)
    figure.update_xaxes(step_axis(steps), showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def norms_chart(table: pd.DataFrame, rank: int, theme: Theme) -> go.Figure:
    """Returns the norm of the whole gradient per step of a rank, of the baseline and of the run.

    `table` is that of `analysis.diff.compare`.
    """
    mine = table[(table["kind"] == "gradient") & (table["rank"] == rank)]
    figure = charts.step_figure(theme, "gradient norm (L2)", mine["step"], log=False)
    colour = tokens()[theme]
    figure.update_layout(colorway=[colour["muted"], colour["accent"]])
    for position, (side, label) in enumerate((("base", "baseline"), ("run", "this run"))):
        squares = mine.assign(square=mine[side] ** 2).groupby("step")["square"]
        norm = np.sqrt(squares.sum(min_count=1))
        charts.add_norm_line(figure, norm.index.to_series(), norm, label, position, rank, theme)
    # Norms that clipping made all alike would be on the upper edge, half cut off.
    norms = [v for trace in figure.data for v in trace.y if v is not None]
    if norms:
        figure.update_yaxes(autorangeoptions={"include": [0, 1.06 * max(norms)]})
    return figure
