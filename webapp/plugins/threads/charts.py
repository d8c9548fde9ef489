"""Figures of overlap: tables in, Plotly figures out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.runs import units
from lanescope.webapp.ui import charts
from lanescope.webapp.ui.colours import Theme, blended, tokens
from lanescope.webapp.ui.theme import template

_FULL = 0.55
"""How red a rate of 100 % is: its number has a contrast of 4.5 or more in both themes."""


def overlap_rates(table: pd.DataFrame, limit: float | None, theme: Theme) -> go.Figure:
    """Returns overlap rate over the time of the phase, a line per rank, and the limit.

    Of more than MAX_LINES ranks those with the greatest mean rate are drawn.

    `table` is that of `analysis.overlap.overlap_over_time`; `customdata` has the bounds of the
    stretch, ns.
    """
    if table["rate"].isna().all():
        return charts.empty_figure("No thread is in this phase.")
    if not table["rate"].any() and table["rank"].nunique() > charts.MAX_LINES:
        return charts.empty_figure("On no rank are two threads in this phase at the same time.")
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    factor, unit = units.unit_for(float(table["end_ns"].max()), "ns")
    means = table.groupby("rank")["rate"].mean()
    drawn = means.sort_values(ascending=False, kind="stable").index[: charts.MAX_LINES]
    if len(means) > charts.MAX_LINES:
        few = f"the {charts.MAX_LINES} of {units.count(len(means))} ranks that overlap most"
        figure.update_layout(legend_title={"text": few, "side": "top", "font_size": 12})
    shown = table[table["rank"].isin(drawn)]
    for position, (rank, stretches) in enumerate(shown.groupby("rank", sort=True)):
        # A step lasts until the next point: one that nothing follows needs a point at its end too.
        known = stretches["rate"].notna()
        last = stretches[known & ~known.shift(-1, fill_value=False)]
        rows = pd.concat(
            [last.assign(at_ns=last["end_ns"]), stretches.assign(at_ns=stretches["start_ns"])]
        )
        rows = rows.sort_values("at_ns", kind="stable")
        figure.add_scatter(
            x=[float(t) / factor for t in rows["at_ns"]],
            y=[None if np.isnan(rate) else float(rate) * 100 for rate in rows["rate"]],
            name=f"rank {rank}",
            mode="lines",
            line={**charts.line_at(position, theme), "shape": "hv"},
            customdata=[[int(a), int(b)] for a, b in zip(rows.start_ns, rows.end_ns, strict=True)],
            hovertemplate=f"<b>rank {rank}</b><br>at %{{x:.4g}} {unit}: %{{y:.3g}} %"
            "<extra></extra>",
        )
    if limit is not None:
        figure.add_hline(
            y=limit * 100,
            line={"width": 1, "dash": "dot", "color": tokens()[theme]["bad"]},
            annotation={"text": f"limit {units.share(limit)}"},
        )
    figure.update_xaxes(title_text=f"time from the start of the run, {unit}")
    figure.update_yaxes(title_text="overlap rate, %", **charts.FROM_ZERO)
    return figure


def forward_windows(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Draws the time from forward to backward by step, a line per thread.

    `table` is that of `analysis.turns.forward_to_backward` with the column name, of the thread; the
    threads with the longest windows are drawn. `customdata` has the bounds of the window, ns.
    """
    factor, unit = units.unit_for(float(table["window_ns"].max()), "ns")
    figure = charts.step_figure(theme, f"window, {unit}", table["step"], log=False)
    by_thread = dict(iter(table.groupby(["rank", "thread"], sort=True)))
    longest = table.groupby(["rank", "thread"])["window_ns"].max().astype("float64")
    longest = longest.nlargest(charts.MAX_LINES).index
    for position, key in enumerate(sorted(longest)):
        rows = by_thread[key]
        name = f"rank {key[0]}, {rows['name'].iloc[0]}"
        figure.add_scatter(
            x=[int(step) for step in rows["step"]],
            y=[float(window) / factor for window in rows["window_ns"]],
            name=name,
            **charts.marked_line(position, theme),
            customdata=[
                [int(low), int(high)]
                for low, high in zip(rows.forward_end_ns, rows.backward_start_ns, strict=True)
            ],
            hovertemplate=f"<b>{charts.escaped(name)}</b><br>step %{{x}}: %{{y:.3g}} {unit}"
            "<extra></extra>",
        )
    charts.few_markers(figure)
    return figure


def pair_rates(
    names: Sequence[str],
    rates: Sequence[Sequence[float | None]],
    to: Sequence[Sequence[str]],
    theme: Theme,
) -> go.Figure:
    """Returns overlap rates (0 to 1) of all pairs of threads; `customdata` is the address a pair
    leads to.

    Columns are numbered like rows: names of threads are long.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    numbers = [str(i) for i in range(1, len(names) + 1)]
    figure.add_heatmap(
        x=numbers,
        y=[f"{i} {charts.escaped(name)}" for i, name in zip(numbers, names, strict=True)],
        z=[[None if rate is None else 100 * rate for rate in row] for row in rates],
        customdata=to,
        texttemplate="%{z:.3~g}" if len(names) <= 16 else None,
        textfont={"color": colour["ink"]},
        colorscale=[[0, colour["panel"]], [1, blended(colour["panel"], colour["bad"], _FULL)]],
        zmin=0,
        zmax=100,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar=charts.colour_bar("rate, %"),
        hovertemplate="<b>%{y}</b> and %{x}<br>%{z:.3g} %<extra></extra>",
    )
    figure.update_xaxes(type="category", side="top", showgrid=False)
    figure.update_layout(
        charts.BUTTONS_ABOVE, margin_t=60
    )  # the buttons stand above the columns' numbers
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure
