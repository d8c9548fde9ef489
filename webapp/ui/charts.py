"""Tables in, Plotly figures out. No Dash, no analysis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.collectives.skew import LateMap
from lanescope.webapp.runs import units
from lanescope.webapp.runs.units import duration
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import EITHER, POWERS, step_axis, template

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Beside its colour a line has a pattern and a marker: never colour alone."""
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
"""One more than there are colours and patterns: the seventh line is not the first one again."""

MOST_LINES = 12
"""More lines than this cannot be told apart; the ones with the greatest norm are drawn."""

FROM_ZERO: dict[str, Any] = {"autorangeoptions": {"include": 0}}
"""An axis that shows 0, with room beside it, unlike "tozero": on the very edge a point is half cut
off, and Plotly's handles for dragging an axis take the clicks on it."""


def total_norms(norms: pd.DataFrame, theme: Theme, *, log: bool) -> go.Figure:
    """Norm of the whole gradient per step, a line per rank.

    `norms` has the columns rank, step and norm, see `analysis.gradients.gradient_norms`.
    """
    figure = _figure(theme, "gradient norm (L2)", norms["step"], log=log)
    by_rank = {int(rank): rows for rank, rows in norms.groupby("rank", sort=True)}
    for position, (rank, rows) in enumerate(by_rank.items()):
        _line(figure, rows["step"], rows["norm"], f"rank {rank}", position, rank, theme)
    _mark_missing(figure, norms, theme)
    return figure


def parameter_norms(gradients: pd.DataFrame, rank: int, theme: Theme, *, log: bool) -> go.Figure:
    """Norm per step of a rank's parameters, a line each: those with the greatest norms.

    `gradients` has the columns rank, step, parameter and norm, see `analysis.gradients.gradients`.
    """
    mine = gradients[gradients["rank"] == rank]
    figure = _figure(theme, "gradient norm (L2)", mine["step"], log=log)
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
    mine = table[(table["kind"] == "gradient") & (table["rank"] == rank)]
    figure = _figure(theme, "gradient norm (L2)", mine["step"], log=False)
    colour = tokens()[theme]
    figure.update_layout(colorway=[colour["muted"], colour["accent"]])
    for position, (side, label) in enumerate((("base", "baseline"), ("run", "this run"))):
        squares = mine.assign(square=mine[side] ** 2).groupby("step")["square"]
        norm = np.sqrt(squares.sum(min_count=1))
        _line(figure, norm.index.to_series(), norm, label, position, rank, theme)
    # Norms that clipping made all alike would lie on the upper edge, half cut off.
    norms = [v for trace in figure.data for v in trace.y if v is not None]
    if norms:
        figure.update_yaxes(autorangeoptions={"include": [0, 1.06 * max(norms)]})
    return figure


def overlap_rates(table: pd.DataFrame, limit: float | None, theme: Theme) -> go.Figure:
    """Overlap rate over the time of the run, a line per rank, and the limit.

    `table` is that of `analysis.overlap.overlap_over_time`; `customdata` has the bounds of the
    stretch, ns.
    """
    if table["rate"].isna().all():
        return nothing("No thread is in this phase.")
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    colours = template(theme).layout.colorway
    for position, (rank, stretches) in enumerate(table.groupby("rank", sort=True)):
        # A step lasts until the next point: one that nothing follows needs a point at its end too.
        known = stretches["rate"].notna()
        last = stretches[known & ~known.shift(-1, fill_value=False)]
        rows = pd.concat(
            [last.assign(at_ns=last["end_ns"]), stretches.assign(at_ns=stretches["start_ns"])]
        )
        rows = rows.sort_values("at_ns", kind="stable")
        figure.add_scatter(
            x=[float(t) / 1e9 for t in rows["at_ns"]],
            y=[None if np.isnan(rate) else float(rate) * 100 for rate in rows["rate"]],
            name=f"rank {rank}",
            mode="lines",
            line={
                "width": 1.5, "shape": "hv", "color": colours[position % len(colours)],
                "dash": DASHES[position % len(DASHES)],
            },
            customdata=[[int(a), int(b)] for a, b in zip(rows.start_ns, rows.end_ns, strict=True)],
            hovertemplate=f"<b>rank {rank}</b><br>at %{{x:.4g}} s: %{{y:.3g}} %<extra></extra>",
        )  # fmt: skip
    if limit is not None:
        figure.add_hline(
            y=limit * 100, line={"width": 1, "dash": "dot", "color": tokens()[theme]["bad"]},
            annotation={"text": f"limit {units.share(limit)}"},
        )  # fmt: skip
    figure.update_xaxes(title_text="time, s", rangemode="tozero")
    figure.update_yaxes(title_text="overlap rate, %", **FROM_ZERO)
    return figure


def forward_windows(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """From the end of forward to the start of backward, per step, a line per thread.

    `table` is that of `analysis.turns.forward_to_backward` with the column name, of the thread; the
    threads with the longest windows are drawn. `customdata` has the bounds of the window, ns.
    """
    figure = _figure(theme, "window, s", table["step"], log=False)
    figure.update_yaxes(exponentformat="SI")
    colours = template(theme).layout.colorway
    by_thread = dict(iter(table.groupby(["rank", "thread"], sort=True)))
    longest = table.groupby(["rank", "thread"])["window_ns"].max().astype("float64")
    longest = longest.nlargest(MOST_LINES).index
    for position, key in enumerate(sorted(longest)):
        rows = by_thread[key]
        name = f"rank {key[0]}, {rows['name'].iloc[0]}"
        figure.add_scatter(
            x=[int(step) for step in rows["step"]],
            y=[float(window) * 1e-9 for window in rows["window_ns"]],
            name=name,
            mode="lines+markers" if len(rows) <= 200 else "lines",
            line={
                "width": 1.5, "color": colours[position % len(colours)],
                "dash": DASHES[position % len(DASHES)],
            },
            marker={"size": 5, "symbol": MARKERS[position % len(MARKERS)]},
            customdata=[
                [int(low), int(high)]
                for low, high in zip(rows.forward_end_ns, rows.backward_start_ns, strict=True)
            ],
            hovertemplate=f"<b>{escaped(name)}</b><br>step %{{x}}: %{{y:.3s}}s<extra></extra>",
        )  # fmt: skip
    return figure


def late_heat(table: LateMap, theme: Theme) -> go.Figure:
    """Arrival of each rank at each collective of a group, as `analysis.skew.late_map` has it.

    The colour is linear in how late the rank came; `customdata` is the sequence number of the call.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    late = [[None if np.isnan(v) else float(v) / 1e6 for v in row] for row in table.late_ns]
    words = [[_time(v) for v in row] for row in table.late_ns]
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
        zmax=float(np.nanmax(table.late_ns, initial=0.0)) / 1e6 or 1.0,
        colorbar={
            "title": {"text": "late, ms", "side": "right"},
            "thickness": 10,
            "outlinewidth": 0,
        },
        hovertemplate="<b>%{y}, call %{customdata}</b><br>%{text} after the first rank"
        "<extra></extra>",
    )
    figure.update_xaxes(title_text="sequence number", type="category", nticks=20, showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def pair_rates(
    names: Sequence[str], rates: Sequence[Sequence[float | None]], to: Sequence[Sequence[str]],
    theme: Theme,
) -> go.Figure:  # fmt: skip
    """Overlap rates (0 to 1) of all pairs of threads; `customdata` is the address a pair leads to.

    Columns are numbered like rows: names of threads are long.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    numbers = [str(i) for i in range(1, len(names) + 1)]
    figure.add_heatmap(
        x=numbers,
        y=[f"{i} {escaped(name)}" for i, name in zip(numbers, names, strict=True)],
        z=[[None if rate is None else 100 * rate for rate in row] for row in rates],
        customdata=to,
        texttemplate="%{z:.3~g}" if len(names) <= 16 else None,
        colorscale=[[0, colour["panel"]], [1, colour["bad"]]],
        zmin=0,
        zmax=100,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar={"title": {"text": "rate, %", "side": "right"}, "thickness": 10,
                  "outlinewidth": 0},
        hovertemplate="<b>%{y}</b> and %{x}<br>%{z:.3g} %<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(type="category", side="top", showgrid=False)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return figure


def nothing(words: str) -> go.Figure:
    """Words in the place of a chart: an empty figure would show bare axes."""
    figure = go.Figure()
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)",
        xaxis_visible=False, yaxis_visible=False,
    )  # fmt: skip
    figure.add_annotation(text=words, showarrow=False, font={"color": EITHER})
    return figure


def by_size(table: pd.DataFrame, column: str, title: str, theme: Theme) -> go.Figure:
    """A column of `analysis.collectives.collectives` against the bytes of a call, log-log.

    A line per operation and group. Seconds and bytes per second carry the prefixes of SI.
    """
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    colours = template(theme).layout.colorway
    known = table[(table["bytes"] > 0) & (table[column] > 0)]
    if known.empty:
        return nothing(f"The run does not tell the {title} of any call.")
    unit, factor = ("B/s", 1e9) if column.endswith("_gbs") else ("s", 1e-9)
    largest = known.groupby(["name", "group"])["total_bytes"].sum().nlargest(MOST_LINES).index
    for position, (name, group) in enumerate(largest):
        mine = known[(known["name"] == name) & (known["group"] == group)].sort_values("bytes")
        figure.add_scatter(
            x=[float(value) for value in mine["bytes"]],
            y=[float(value) * factor for value in mine[column]],
            name=f"{escaped(str(name))}, group {escaped(str(group))}",
            mode="lines+markers",
            line={
                "width": 1.5, "color": colours[position % len(colours)],
                "dash": DASHES[position % len(DASHES)],
            },
            marker={"size": 7, "symbol": MARKERS[position % len(MARKERS)]},
            hovertemplate=f"<b>{escaped(str(name))}</b><br>%{{x:.4s}}B: %{{y:.3s}}{unit}"
            "<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(
        title_text="bytes of a call", type="log", dtick=1, exponentformat="SI", minexponent=1
    )
    figure.update_yaxes(
        title_text=f"{title}, {unit}", type="log", dtick=1, exponentformat="SI", minexponent=1
    )
    return figure


def _time(ns: float) -> str:
    return "did not come" if np.isnan(ns) else duration(ns)


def _figure(theme: Theme, title: str, steps: pd.Series, *, log: bool) -> go.Figure:
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    figure.update_xaxes(step_axis([0, *map(int, steps)]), **FROM_ZERO)
    figure.update_yaxes(title_text=title, type="log" if log else "linear")
    if log:
        figure.update_yaxes(POWERS)
    else:
        figure.update_yaxes(**FROM_ZERO)
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
        hovertemplate=f"<b>{escaped(name)}</b><br>rank {rank}, step %{{x}}<br>norm %{{y:.4g}}"
        "<extra></extra>",
    )


def _mark_missing(figure: go.Figure, rows: pd.DataFrame, theme: Theme) -> None:
    """NaN and infinite norms have no place on the axis; a red cross at its foot says where."""
    wrong = rows[~np.isfinite(rows["norm"])]
    if "missing" in wrong and wrong["missing"].dtype == bool:
        wrong = wrong[~wrong["missing"]]  # None is no gradient, not a wrong one
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
    """Markers (`trace`: of a scatter) for what has no place on the vertical axis.

    They stand at `height`, a share of the chart's, whatever the range: on a hidden second axis.
    """
    figure.add_scatter(x=x, y=[height] * len(x), yaxis="y2", mode="markers", **trace)
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False})


def escaped(text: str) -> str:
    """Text within a hover template: neither markup nor a placeholder."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("%{", "%&#123;")
