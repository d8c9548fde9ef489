"""How far repeated runs are apart: tables of `analysis.repeats` in, Plotly figures out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import (
    MAX_LINES,
    add_at_foot,
    escaped,
    few_markers,
    marked_line,
)
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import POWERS, step_axis, template


def spread_by_step(spread: pd.DataFrame, limit: float, theme: Theme) -> go.Figure:
    """Returns spread of gradient norms per step, a line for each of the parameters where it is
    largest.

    `spread` is that of `analysis.repeats.fluctuation`; the worst rank counts. The axis is
    logarithmic and 0 has no place on it; an infinite spread is a cross at its foot.
    """
    figure = _figure(theme)
    worst = spread.groupby(["parameter", "step"])["std"].max().reset_index()
    most = worst.groupby("parameter")["std"].max().sort_values(ascending=False, kind="stable")
    by_name = dict(iter(worst.groupby("parameter")))
    for k, name in enumerate(most[most > 0].index[:MAX_LINES]):
        rows = by_name[name]
        figure.add_scatter(
            x=[int(step) for step in rows["step"]],
            y=[float(v) if 0 < v < np.inf else None for v in rows["std"]],
            name=str(name),
            **marked_line(k, theme),
            hovertemplate=f"<b>{escaped(str(name))}</b><br>step %{{x}}: %{{y:.3g}}<extra></extra>",
        )
    few_markers(figure)
    wrong = sorted({int(step) for step in worst[np.isinf(worst["std"])]["step"]})
    if wrong:
        add_at_foot(
            figure,
            wrong,
            0.02,
            name="NaN or infinite in some runs",
            marker={"symbol": "x", "size": 9, "color": tokens()[theme]["bad"]},
            hovertemplate="<b>step %{x}</b><br>NaN or infinite in some runs<extra></extra>",
        )
    _limit(figure, limit, theme)
    figure.update_xaxes(step_axis([0, *map(int, worst["step"])]))
    figure.update_yaxes(title_text="standard deviation of the gradient norm")
    if len(worst) and not figure.data:  # axes of nothing would have ranges of no meaning
        figure.add_annotation(
            text="the norms are the same in every run",
            xref="paper",
            yref="paper",
            x=0.5,
            y=0.5,
            showarrow=False,
        )
        figure.update_xaxes(range=[-0.5, int(worst["step"].max()) + 0.5])
        about = float(np.log10(limit)) if limit > 0 else -5.0
        figure.update_yaxes(range=[about - 2, about + 1])
    return figure


def fluctuation_by_threads(
    entries: Sequence[Mapping[str, Any]], limit: float, theme: Theme
) -> go.Figure:
    """Returns gradient fluctuation by number of threads; a hollow marker where all runs had the
    same bits.

    `entries` are those of `analysis.repeats.Repetition`.
    """
    figure = _figure(theme)
    accent = tokens()[theme]["accent"]
    values = [_number(one["gradient_fluctuation"]) for one in entries]
    figure.add_scatter(
        x=[str(one["threads"]) for one in entries],
        y=[value if value and np.isfinite(value) else None for value in values],
        mode="lines+markers",
        line={"width": 1.5, "color": accent},
        marker={"size": 9, "color": accent},
        name="gradient fluctuation",
        hovertemplate="<b>%{x} threads</b><br>%{y:.3g}<extra></extra>",
    )
    same = [str(one["threads"]) for one in entries if one["bitwise_identical"]]
    if same:
        add_at_foot(
            figure,
            same,
            0.03,
            name="bitwise identical",
            marker={"size": 9, "symbol": "circle-open", "color": tokens()[theme]["good"]},
            hovertemplate="<b>%{x} threads</b><br>bitwise identical each time<extra></extra>",
        )
        # Fluctuating not at all, they must not stand above the limit.
        heights = [value for value in (limit, *values) if value and np.isfinite(value)]
        if heights:
            low, high = float(np.log10(min(heights))), float(np.log10(max(heights)))
            figure.update_layout(yaxis={"range": [low - 1, high + 0.3]})
    _limit(figure, limit, theme)
    figure.update_xaxes(title_text="threads", type="category")
    figure.update_yaxes(title_text="gradient fluctuation")
    return figure


def _figure(theme: Theme) -> go.Figure:
    figure = go.Figure(
        layout={"template": template(theme), "uirevision": "kept", "showlegend": True}
    )
    figure.update_yaxes(POWERS, type="log")
    return figure


def _limit(figure: go.Figure, limit: float, theme: Theme) -> None:
    if limit > 0:
        figure.add_hline(y=limit, line={"width": 1, "dash": "dot", "color": tokens()[theme]["bad"]})
        # On a logarithmic axis an annotation stands at the exponent, a line at the value.
        figure.add_annotation(
            x=1,
            xref="paper",
            y=float(np.log10(limit)),
            text=f"limit {units.number(limit)}",
            showarrow=False,
            xanchor="right",
            yanchor="bottom",
        )


def _number(value: Any) -> float | None:
    """JSON has no infinity: it travels as text."""
    return None if value is None else float("inf") if isinstance(value, str) else float(value)
