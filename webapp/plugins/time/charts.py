"""Figures about time: steps by category, the critical path on its lanes, a category by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from lanescope.webapp.plugins.time.breakdown import CATEGORIES
from lanescope.webapp.plugins.time.critical_path import PATH_CATEGORIES
from lanescope.webapp.plugins.time.job_steps import JobStep
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.types import Float64Array
from lanescope.webapp.ui.charts import (
    BUTTONS_ABOVE,
    MAX_HEAT_COLUMNS,
    MAX_HEAT_ROWS,
    bins,
    colour_bar,
    empty_figure,
    escaped,
    greatest_of_bins,
    rank_rows,
)
from lanescope.webapp.ui.colours import Theme, tokens
from lanescope.webapp.ui.theme import SEQUENTIAL, step_axis, template

MAX_TIMES_MEDIAN = 3.0
"""A bar longer than this, as the first step's often is, is cut off and its length written on it:
else no other could be read."""

_MIN_SHARE = 0.002
"""Of all steps together; categories below are not drawn."""

MAX_BARS = 75
"""Bars that can still be distinguished and clicked; of more steps, neighbours share one. Each is
two elements of the page for each of its categories."""

BINS = 700
"""Parts of a step, of a pixel or two each, in which the category with the most time is drawn."""

MAX_PIECES, MIN_BINS = 400, 32
"""Pieces of all lanes, each with two elements of the page: of more the bins are wider."""

CATEGORY_TOKENS = {
    "data_loading": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "compute": "other",
    "exposed_communication": "collective",
    "waiting_for_ranks": "waiting",
    "waiting_for_threads": "blocked",
    "copy": "copy",
    "launch": "launch",
    "host_bound": "idle",
    "python": "python",
    "idle": "idle",
    "other": "other",
    "unexplained": "idle",
}
"""Category of time -> the token of its colour."""

PALE = 0.35
"""Opacity of parts off the critical path."""


def step_bars(steps: pd.DataFrame, theme: Theme) -> go.Figure:
    """Draws stacked bars of `breakdown.mean_steps`, ms; a click gets the first and last step of a
    bar."""
    if steps.empty:
        return empty_figure("no training step was recorded")
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    means, customdata = _sharing(steps)
    first = [one for one, *_ in customdata]
    width = 0.86 * max(1, -(-len(steps) // MAX_BARS))
    colours = tokens()[theme]
    usual = means["duration_ns"] <= MAX_TIMES_MEDIAN * means["duration_ns"].median()
    factor, unit = units.unit_for(float(means["duration_ns"][usual].max()), "ns")
    lengths = means["duration_ns"] / factor
    top = 1.1 * float(lengths[usual].max())
    for name, title in CATEGORIES.items():
        values = means[f"{name}_ns"] / factor
        if values.sum() <= _MIN_SHARE * lengths.sum():
            continue
        figure.add_bar(
            x=first,
            y=values.tolist(),
            name=title,
            width=width,
            marker={"color": colours[CATEGORY_TOKENS[name]], "line": {"width": 0}},
            customdata=customdata,
            hovertemplate=f"<b>{title}</b> %{{y:.4~g}} {unit}<br>%{{customdata[2]}}<extra></extra>",
        )
    figure.update_layout(barmode="stack", legend={"traceorder": "normal", "y": 1.12})
    figure.update_xaxes(step_axis(steps["step"].tolist()))
    figure.update_yaxes(title_text=f"step time, {unit}", range=[0, top])
    for bar in _apart(lengths.to_numpy(), top):
        figure.add_annotation(
            x=first[bar],
            y=top,
            text=f"↑ {units.duration(lengths.iloc[bar] * factor)}",
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            font={"size": 11, "color": colours["muted"]},
        )
    return figure


def _apart(lengths: Float64Array, top: float) -> list[int]:
    """Positions of bars above `top` that have room for their length in words: of neighbours the
    longest."""
    kept: list[int] = []
    for bar in np.argsort(-lengths, kind="stable").tolist():
        if lengths[bar] > top and all(abs(bar - other) * 8 > len(lengths) for other in kept):
            kept.append(bar)
    return kept


def _sharing(steps: pd.DataFrame) -> tuple[pd.DataFrame, list[tuple[int, int, str]]]:
    """The means of the steps that share a bar, and for each bar the first, the last, and words."""
    bars = steps.groupby(np.arange(len(steps)) // max(1, -(-len(steps) // MAX_BARS)))
    ends = zip(bars["step"].first().tolist(), bars["step"].last().tolist(), strict=True)
    return bars.mean(), [
        (int(a), int(b), f"step {a}" if a == b else f"steps {a} to {b}") for a, b in ends
    ]


def change_bars(changes: pd.DataFrame, theme: Theme) -> go.Figure:
    """Draws the change of each category from the baseline, by step: what got longer above 0, what
    got shorter below. The rows of `changes.step_changes`."""
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    colours = tokens()[theme]
    changes, customdata = _sharing(changes)
    apart = {name: changes[f"{name}_ns"] - changes[f"base_{name}_ns"] for name in CATEGORIES}
    factor, unit = units.unit_for(float(changes["duration_ns"].max()), "ns")
    steps = [one for one, *_ in customdata]
    hover = f"%{{y:+.4~g}} {unit}<br>%{{customdata[2]}}<extra></extra>"
    least = _MIN_SHARE * float(changes["duration_ns"].sum())
    for name, title in CATEGORIES.items():
        if apart[name].abs().sum() <= least:
            continue
        figure.add_bar(
            x=steps,
            y=(apart[name] / factor).tolist(),
            name=title,
            marker={"color": colours[CATEGORY_TOKENS[name]], "line": {"width": 0}},
            customdata=customdata,
            hovertemplate=f"<b>{title}</b> {hover}",
        )
    total = (changes["duration_ns"] - changes["base_duration_ns"]) / factor
    figure.add_scatter(
        x=steps,
        y=total.tolist(),
        name="whole step",
        mode="lines+markers",
        line={"color": colours["ink"], "width": 1.5},
        marker={"size": 4},
        customdata=customdata,
        hovertemplate=f"<b>whole step</b> {hover}",
    )
    figure.update_layout(barmode="relative", legend={"traceorder": "normal", "y": 1.12})
    figure.update_xaxes(step_axis(steps))
    figure.update_yaxes(title_text=f"change, {unit}")
    return figure


def path_lanes(
    path: pd.DataFrame,
    window: JobStep,
    lanes: Mapping[int, Mapping[str, Intervals]],
    names: Mapping[tuple[int, str], str],
    theme: Theme,
) -> go.Figure:
    """Draws the critical path over the ranks' training threads, and other threads that are on it.

    `lanes` has the categories of each rank, `names` what to call each lane. A click gets the start
    and end of a piece, ns.
    """
    rows = dict.fromkeys(names)
    colours = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": f"step {window.step}"})
    figure.update_layout(BUTTONS_ABOVE)
    factor, unit = units.unit_for(window.end_ns - window.start_ns, "ns")
    first = {rank: lane for lane in reversed(rows) for rank in [lane[0]]}
    spent = [(names[first[rank]], PALE, parts) for rank, parts in lanes.items()]
    for lane in rows:
        mine = path[(path["rank"] == lane[0]) & (path["thread"] == lane[1])]
        own = {
            str(name): Intervals.of(part["start_ns"], part["end_ns"])
            for name, part in mine.groupby("category")
        }
        if own:
            spent.append((names[lane], 1.0, own))
    drawn = _fitting([parts for *_, parts in spent], window)
    for (name, opacity, _), pieces in zip(spent, drawn, strict=True):
        _bars(figure, pieces, name, window, colours, opacity)
    changes = path[["rank", "thread"]].ne(path[["rank", "thread"]].shift()).any(axis=1)
    x: list[float] = []
    y: list[str] = []
    starts = path.loc[changes, ["rank", "thread", "start_ns"]].itertuples(index=False)
    for rank, thread, start in starts:
        if y:
            x.append((start - window.start_ns) / factor)
            y.append(y[-1])
        x.append((start - window.start_ns) / factor)
        y.append(names[rank, thread])
    x.append((window.end_ns - window.start_ns) / factor)
    y.append(y[-1])
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": colours["bad"], "width": 2},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.update_layout(barmode="overlay", bargap=0.35, showlegend=False)
    figure.update_xaxes(title_text=f"time from the start of the step, {unit}", range=[0, x[-1]])
    figure.update_yaxes(
        autorange="reversed",
        type="category",
        categoryorder="array",
        categoryarray=list(names.values()),
    )
    return figure


_Piece = tuple[str, int, int]  # category, start, end


def _fitting(lanes: Sequence[Mapping[str, Intervals]], window: JobStep) -> list[list[_Piece]]:
    """The pieces of each lane, in as many bins, up to BINS, as make MAX_PIECES of all lanes."""
    bins = BINS
    while True:
        edges = np.linspace(window.start_ns, window.end_ns, bins + 1).astype(np.int64)
        found = [
            _pieces({name: np.diff(times.covered(edges)) for name, times in parts.items()}, edges)
            for parts in lanes
        ]
        if bins <= MIN_BINS or sum(map(len, found)) <= MAX_PIECES:
            return found
        bins //= 2


def _pieces(spent: Mapping[str, np.ndarray], edges: np.ndarray) -> list[_Piece]:
    """Runs of neighbouring bins with the same category, ns; bins without any are left out."""
    kinds = list(spent)
    table = np.array([spent[name] for name in kinds])
    best = np.where(table.max(axis=0) > 0, table.argmax(axis=0), -1)
    cuts = np.flatnonzero(np.diff(best)) + 1
    begins, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(best)]
    return [
        (kinds[best[a]], int(edges[a]), int(edges[b]))
        for a, b in zip(begins, ends, strict=True)
        if best[a] >= 0
    ]


def _bars(
    figure: go.Figure,
    pieces: list[_Piece],
    lane: str,
    window: JobStep,
    colours: Mapping[str, str],
    opacity: float,
) -> None:
    factor, _ = units.unit_for(window.end_ns - window.start_ns, "ns")
    titles = [PATH_CATEGORIES[name] for name, _, _ in pieces]
    about = [
        (start, end, f"{title}, {units.duration(end - start)}")
        for title, (_, start, end) in zip(titles, pieces, strict=True)
    ]
    figure.add_bar(
        base=[(start - window.start_ns) / factor for _, start, _ in pieces],
        x=[(end - start) / factor for _, start, end in pieces],
        y=[lane] * len(pieces),
        orientation="h",
        marker={"color": [colours[CATEGORY_TOKENS[n]] for n, _, _ in pieces], "line": {"width": 0}},
        opacity=opacity,
        customdata=about,
        hovertemplate=f"<b>{escaped(lane)}</b><br>%{{customdata[2]}}<extra></extra>",
    )


def category_heat(
    table: pd.DataFrame, category: str, theme: Theme, ranks: Sequence[int] | None = None
) -> go.Figure:
    """Draws the share of a category in each step of each rank: rows of `breakdown.step_time`.

    `ranks`: all of them in the order in which they are drawn, from the top; default: by number.
    """
    shares = table.assign(share=table[f"{category}_ns"] / table["duration_ns"].clip(lower=1) * 100)
    hover = f"{CATEGORIES[category]} %{{z:.3~g}} %"
    return _heat(shares, "share", "% of the step", hover, theme, ranks, zmin=0)


def slowdown_heat(table: pd.DataFrame, theme: Theme) -> go.Figure:
    """Draws the slowdown by each rank in each step, the slowest rank first: the rows of
    `slowdown.worker_slowdown`.

    The scale is that of the study: from 1, and to at least 1.5.
    """
    most = max(1.5, float(table["slowdown"].max()))
    means = table.groupby("rank")["slowdown"].mean()
    ranks = means.sort_values(ascending=False, kind="stable").index.tolist()
    hover = "slowdown ×%{z:.3~f}"
    return _heat(table, "slowdown", "slowdown", hover, theme, ranks, zmin=1, zmax=most)


def _heat(
    table: pd.DataFrame,
    value: str,
    title: str,
    hover: str,
    theme: Theme,
    order: Sequence[int] | None,
    **bounds: float,
) -> go.Figure:
    """A value by rank and step; of many ranks or steps the greatest in each bin, with its place."""
    grid = table.pivot(index="rank", columns="step", values=value)
    if grid.empty:
        return empty_figure("no training step was recorded")
    if order is not None:
        grid = grid.loc[[rank for rank in order if rank in grid.index]]
    figure = go.Figure(layout={"template": template(theme), "uirevision": title})
    figure.update_layout(BUTTONS_ABOVE)
    ranks, steps = bins(len(grid), MAX_HEAT_ROWS), bins(grid.shape[1], MAX_HEAT_COLUMNS)
    values = grid.to_numpy(float)
    first = grid.columns[[low for low, _ in steps]].tolist()
    figure.add_heatmap(
        x=first,
        y=[f"rank {grid.index[low]}" for low, _ in ranks],
        z=greatest_of_bins(greatest_of_bins(values, ranks), steps, axis=1).tolist(),
        text=[[_greatest(grid, values, rank, step) for step in steps] for rank in ranks],
        colorscale=SEQUENTIAL[theme],
        colorbar=colour_bar(title, nticks=max(3, min(len(ranks), 8))),
        hovertemplate=f"%{{text}}<br>{hover}<extra></extra>",
        **bounds,
    )
    figure.update_xaxes(step_axis(first))
    rank_rows(figure)
    return figure


def _greatest(
    grid: pd.DataFrame, values: Float64Array, ranks: tuple[int, int], steps: tuple[int, int]
) -> str:
    """Where the greatest value of a bin is."""
    (row, rows), (column, columns) = ranks, steps
    part = np.nan_to_num(values[row : row + rows, column : column + columns], nan=-np.inf)
    at = np.unravel_index(int(part.argmax()), part.shape)
    return f"rank {grid.index[row + at[0]]}, step {grid.columns[column + at[1]]}"
