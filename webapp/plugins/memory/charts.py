"""The memory of a device over time, as stacked areas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go

from lanescope.webapp.plugins.memory.storages import STORAGE_CATEGORIES
from lanescope.webapp.runs import units
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.ui.charts import escaped
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import template

STORAGE_TOKENS = {
    "parameters": "forward",
    "optimizer_state": "optimizer",
    "gradients": "backward",
    "activations": "collective",
    "temporary": "other",
    "other": "data",
    "before": "idle",
}
"""Category of memory -> the token of its colour."""


def over_time(
    groups: Mapping[str, Int64Array],
    instants: Int64Array,
    peak: tuple[int, int],
    theme: Theme,
) -> go.Figure:
    """Returns bytes of each group at some instants (ns), largest group at the bottom unless these
    are categories; `peak`: instant and bytes. A click gets the instant, ns."""
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    colours = tokens()[theme]
    factor, unit = units.unit_for(peak[1], "B")
    tick, time_unit = units.unit_for(float(instants.max(initial=0)), "ns")
    times = (instants / tick).tolist()
    cycle = template(theme).layout.colorway
    for i, (name, sizes) in enumerate(groups.items()):
        token = STORAGE_TOKENS.get(name)
        figure.add_scatter(
            x=times,
            y=(sizes / factor).tolist(),
            name=escaped(STORAGE_CATEGORIES.get(name, name)),
            stackgroup="all",
            mode="lines",
            line={"width": 0.5, "color": colours[token] if token else cycle[i % len(cycle)]},
            customdata=instants.tolist(),
            text=[units.size(int(one)) for one in sizes],
            hovertemplate="%{fullData.name} %{text}<extra></extra>",
        )
    instant, size = peak
    figure.add_scatter(
        x=[instant / tick],
        y=[size / factor],
        name="peak",
        mode="markers",
        marker={"symbol": "diamond", "size": 9, "color": colours["ink"]},
        customdata=[instant],
        hovertemplate=f"peak {units.size(size)}<extra></extra>",
    )
    figure.update_layout(
        hovermode="x unified", legend={"traceorder": "normal", "y": 1.12, "orientation": "h"}
    )
    figure.update_xaxes(title_text=f"time from the start of the run, {time_unit}")
    figure.update_yaxes(title_text=f"in use, {unit}", rangemode="tozero")
    return figure


def add_baseline_peak(figure: go.Figure, size: int, peak: int) -> None:
    """Adds a line at the peak of the baseline, bytes, to the chart of a run with this peak; none at
    0."""
    if size:
        figure.add_hline(
            y=size / units.unit_for(peak, "B")[0],
            line={"width": 1, "dash": "dash"},
            annotation_text=f"peak of the baseline, {units.size(size)}",
            annotation_position="top left",
        )


def bin_edges(window: tuple[int, int], count: int) -> Int64Array:
    """Returns edges of equal parts of a window, ns, ascending and each once."""
    return np.unique(np.linspace(*window, count + 1).astype(np.int64))
