"""Figures of collectives and devices: tables in, Plotly figures out."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.collectives.pictures import usual_latest
from lanescope.webapp.plugins.collectives.skew import LateMap
from lanescope.webapp.runs import units
from lanescope.webapp.runs.units import duration
from lanescope.webapp.ui import charts
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import template

_PARTS = (
    ("compute_ns", "computes", "forward", ""),
    ("non_compute_ns", "only communicates or copies", "collective", "/"),
    ("idle_ns", "does nothing", "line", ""),
)
"""Column of the table, words, token and pattern: never colour alone."""


def breakdown(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Returns shares of the time of each rank's device, a bar per rank that adds up to all of it.

    `table` is that of `devices.temporal_breakdown`; of many ranks `least_computing` has the bars.
    """
    shown = least_computing(table)
    names = [f"rank {rank}" for rank in shown["rank"]]
    title = "share of the time of the device, %"
    if len(shown) < len(table):
        title += f" · the {len(shown)} of {units.count(len(table))} ranks that compute least"
    return charts.share_bars(names, shown, "kernel_time_ns", _PARTS, title, theme)


def least_computing(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the MAX_SHARE_BARS devices that compute least, by rank."""
    return charts.greatest_rows(table, -table["compute_ns"] / table["kernel_time_ns"].clip(lower=1))


def late_heat(table: LateMap, theme: Theme) -> go.Figure:
    """Returns arrival of each rank at each collective of a group, as `analysis.skew.late_map` has
    it.

    The colour is linear in how late the rank came, up to `usual_latest`; `customdata` is the
    sequence number of the call.
    """
    if table.late_ns.size == 0:
        return charts.empty_figure("Arrivals cannot be compared in this group.")
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    figure.update_layout(charts.BUTTONS_ABOVE)
    latest = usual_latest(table.late_ns)
    factor, unit = units.unit_for(latest, "ns")
    late = [[None if np.isnan(v) else float(v) / factor for v in row] for row in table.late_ns]
    words = [["did not come" if np.isnan(v) else duration(v) for v in row] for row in table.late_ns]
    figure.add_heatmap(
        x=[str(int(number)) for number in table.first],
        y=[f"rank {rank}" for rank in table.ranks],
        z=late,
        customdata=[[int(n) for n in row] for row in table.sequence],
        text=words,
        colorscale=[[0, colour["panel"]], [0.5, colour["collective"]], [1, colour["bad"]]],
        xgap=1 if len(table.first) <= 120 else 0,
        ygap=1,
        zmin=0,
        zmax=latest / factor or 1.0,
        colorbar=charts.colour_bar(f"late, {unit}"),
        hovertemplate="<b>%{y}, call %{customdata}</b><br>%{text} after the first rank"
        "<extra></extra>",
    )
    figure.update_xaxes(title_text="sequence number", type="category", nticks=20, showgrid=False)
    charts.rank_rows(figure)
    return figure


def by_size(table: pd.DataFrame, column: str, title: str, theme: Theme) -> go.Figure:
    """Returns a column of `analysis.collectives.collectives` against the bytes of a call, log-log.

    A line per operation and group. Seconds and bytes per second carry the prefixes of SI.
    """
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    known = table[(table["bytes"] > 0) & (table[column] > 0)]
    if known.empty:
        return charts.empty_figure(f"The {title} is unknown for every call of this run.")
    base, factor = ("B/s", 1e9) if column.endswith("_gbs") else ("ns", 1.0)
    say = units.size if base == "B/s" else units.duration
    per = "/s" if base == "B/s" else ""
    largest = known.groupby(["name", "group"])["total_bytes"].sum().nlargest(charts.MAX_LINES).index
    for position, (name, group) in enumerate(largest):
        mine = known[(known["name"] == name) & (known["group"] == group)].sort_values("bytes")
        figure.add_scatter(
            x=[float(value) for value in mine["bytes"]],
            y=[float(value) * factor for value in mine[column]],
            name=f"{charts.escaped(str(name))}, group {charts.escaped(str(group))}",
            **charts.marked_line(position, theme, size=7),
            text=[
                f"{units.size(of)}: {say(value * factor)}{per}"
                for of, value in zip(mine["bytes"], mine[column], strict=True)
            ],
            hovertemplate=f"<b>{charts.escaped(str(name))}</b><br>%{{text}}<extra></extra>",
        )
    known = known[pd.MultiIndex.from_frame(known[["name", "group"]]).isin(largest)]
    figure.update_xaxes(_decades(known["bytes"], "B"), title_text="size of a call")
    figure.update_yaxes(_decades(known[column] * factor, base), title_text=title)
    return figure


_MARGIN = 0.05
"""Of an axis beyond its ticks, as a power of ten."""


def _decades(values: pd.Series, base: str) -> dict[str, Any]:
    """Returns a logarithmic axis: a tick per power of ten, or within a decade or so at 1, 2 and 5,
    at least two of them. Plotly's own prefixes stand without a space before them."""
    least, most = values.min(), values.max()
    low, high = floor(log10(least)), ceil(log10(most))
    steps = (1, 2, 5) if most < 30 * least else (1,)
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    of = [(tick, *units.unit_for(tick, base)) for tick in ticks]
    texts = [f"{tick / factor:g}{units.THIN}{unit}" for tick, factor, unit in of]
    axis = {"type": "log", "tickvals": ticks, "ticktext": texts}
    if sum(least <= tick <= most for tick in ticks) < 2:
        around = max(t for t in ticks if t <= least), min(t for t in ticks if t >= most)
        axis["range"] = [log10(around[0]) - _MARGIN, log10(around[1]) + _MARGIN]
    return axis
