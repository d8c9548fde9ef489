"""The roofline: rate of operators over the FLOPs that they do per byte."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import empty_figure, escaped
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import template

MIN_PX, MAX_PX = 6, 34


def roofline(
    table: pd.DataFrame, flops_per_s: float, bytes_per_s: float, stated: bool, theme: Theme
) -> go.Figure:
    """Returns rows of `rates.efficiency` with known work, as areas by their share of the time.

    The roof is the least of `flops_per_s` and intensity times `bytes_per_s`; `stated`: the reader
    gave them, they are not the highest of the table.
    """
    table = table[(table["flops"] > 0) & (table["bytes"] > 0) & (table["time_ns"] > 0)]
    if table.empty:
        return empty_figure("no operator of known work was recorded")
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    colours = tokens()[theme]
    x = (table["flops"] / table["bytes"]).to_numpy()
    divisor, unit = units.unit_for(flops_per_s, "FLOP/s")
    y = (table["flops_per_s"] / divisor).to_numpy()
    share = (table["time_ns"] / table["time_ns"].sum()).to_numpy()
    figure.add_scatter(
        x=x.tolist(),
        y=y.tolist(),
        mode="markers",
        name="operator",
        marker={
            "size": (MIN_PX + (MAX_PX - MIN_PX) * np.sqrt(share)).tolist(),
            "color": colours["accent"],
            "opacity": 0.65,
            "line": {"width": 1, "color": colours["panel"]},
        },
        text=[
            f"<b>{escaped(row.name)}</b> {escaped(row.shapes)}<br>"
            f"{units.count(int(row.calls))} calls, {units.duration(row.time_ns)}"
            for row in table.itertuples(index=False)
        ],
        hovertemplate=f"%{{text}}<br>%{{y:.3~g}} {unit}, %{{x:.3~g}} FLOP per byte<extra></extra>",
    )
    ridge = flops_per_s / bytes_per_s
    low, high = min(x.min(), ridge) / 2, max(x.max(), ridge) * 2
    roof = [one / divisor for one in (low * bytes_per_s, flops_per_s, flops_per_s)]
    figure.add_scatter(
        x=[low, ridge, high],
        y=roof,
        mode="lines",
        name="stated peak" if stated else "highest of the run",
        line={"color": colours["muted"], "width": 1.5, "dash": "solid" if stated else "dash"},
        hoverinfo="skip",
    )
    figure.update_xaxes(_ticks(high / low), title_text="FLOP per byte")
    figure.update_yaxes(_ticks(max(y.max(), roof[-1]) / min(y.min(), roof[0])), title_text=unit)
    return figure


def _ticks(ratio: float) -> dict[str, str]:
    """A logarithmic axis whose ends have this ratio: ticks at 1, 2 and 5, or at each digit where
    that would leave one or two."""
    return {"type": "log", "dtick": "D2" if ratio >= 5 else "D1", "tickformat": "~g"}
