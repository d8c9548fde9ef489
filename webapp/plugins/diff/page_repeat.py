"""How far the runs of `lanescope repeat` are apart: by number of threads, step and parameter."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from lanescope.webapp.plugins.diff import charts_repeat as repeat_charts
from lanescope.webapp.plugins.diff import ids
from lanescope.webapp.plugins.diff.repeats import Repetition, repetition_of
from lanescope.webapp.runs import units
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_MAX_ROWS = 2000
"""Parameters that the table lists, those with the largest spread first."""


def layout(context: Context) -> Component:
    """Returns the repetition that the run is part of; the server offers the page for such runs
    only."""
    found = repetition_of(context.run)
    if found is None or not found.entries:
        return widgets.page(
            "Repeats",
            "The same command several times.",
            states.empty(
                "The run is not part of a repetition.",
                html.P(["Record one: ", html.Code("lanescope repeat -n 10 -- COMMAND")]),
            ),
        )
    numbers = [one["threads"] for one in found.entries]
    runs = sum(len(found.places(number)) for number in numbers)
    chosen = next((e["threads"] for e in found.entries if not e["bitwise_identical"]), numbers[0])
    return widgets.page(
        "Repeats",
        f"The same command {runs} times, seeds untouched. Gradient fluctuation is the standard "
        "deviation of a gradient's norm over the runs, the largest of all ranks, steps and "
        "parameters.",
        by_threads(found, context.settings.limit("gradient_fluctuation")),
        html.Div(
            [
                html.H2("By number of threads"),
                widgets.graph(
                    ids.REPEAT_COUNTS, height=280, what="the spread by number of threads"
                ),
            ],
            hidden=len(numbers) < 2,
        ),
        html.H2("Spread of gradient norms by step"),
        widgets.controls(
            widgets.choice(
                "threads",
                ids.REPEAT_THREADS,
                [{"label": str(number), "value": number} for number in numbers],
                chosen,
            )
        ),
        widgets.graph(ids.REPEAT_CHART, height=380, what="the spread of gradient norms"),
        html.Div(states.loading("Comparing the parameters"), id=ids.REPEAT_TABLE),
    )


def register(app: Dash, context: Context) -> None:
    """Fills charts and table for the number of threads and the theme."""
    found = repetition_of(context.run)
    if found is None:
        return
    limit = context.settings.limit("gradient_fluctuation")

    @app.callback(
        Output(ids.REPEAT_CHART, "figure"),
        Output(ids.REPEAT_TABLE, "children"),
        Input(ids.REPEAT_THREADS, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def show(threads: int, theme: Theme | None) -> tuple[go.Figure, list[Any]]:
        count, spread = _cached(found.folder, threads)
        figure = repeat_charts.spread_by_step(spread, limit, theme or "light")
        return figure, parameters(count, spread)

    @app.callback(Output(ids.REPEAT_COUNTS, "figure"), Input(frame_ids.THEME, "data"))
    def draw(theme: Theme | None) -> go.Figure:
        return repeat_charts.fluctuation_by_threads(found.entries, limit, theme or "light")


def by_threads(found: Repetition, limit: float) -> Component:
    """Returns a row per number of threads: same bits or not, how far apart, and where it begins."""
    rows = []
    for one in found.entries:
        first, spread = one["first"] or {}, one["gradient_fluctuation"]
        what = first.get("op") or first.get("parameter")
        place = f"step {first['step']}, rank {first['rank']}, {what}" if what else ""
        where = f" at {first['where']}" if first.get("where") else ""
        size = "no gradients" if spread is None else spread
        beyond = isinstance(spread, str) or (spread is not None and spread > limit)
        rows.append(
            [
                str(one["threads"]),
                str(len(found.places(one["threads"]))),
                "identical" if one["bitwise_identical"] else "different",
                units.number(size) if isinstance(size, float | int) else size,
                html.Span(
                    f"{'over' if beyond else 'within'} {units.number(limit)}",
                    className="bad" if beyond else "good",
                ),
                f"{place}{where}" if place else "–",
            ]
        )
    heads = ["threads", "runs", "bitwise", "gradient fluctuation", "limit", "first that differs"]
    return widgets.plain_table(heads, rows, numbers=(0, 1, 3))


def parameters(count: int, spread: pd.DataFrame) -> list[Any]:
    """Returns a row per parameter: its largest spread, in which step, and how much of the norm that
    is."""
    apart = spread[spread["std"] > 0]
    if apart.empty:
        text = f"All norms of gradients of the {count} runs are the same."
        return [html.P(text, className="muted")]
    at = apart.groupby(["rank", "parameter"])["std"].idxmax()
    worst = apart.loc[at].sort_values("std", ascending=False, kind="stable")
    made = []
    for row in worst.head(_MAX_ROWS).itertuples():
        share = row.std / row.mean if row.mean else np.nan
        made.append(
            {
                "parameter": row.parameter,
                "rank": row.rank,
                "step": row.step,
                "std": row.std if np.isfinite(row.std) else None,
                "std_text": units.number(row.std) if np.isfinite(row.std) else "NaN in some runs",
                "share": share if np.isfinite(share) else None,
                "share_text": units.share(share) if np.isfinite(share) else "–",
            }
        )
    columns = [
        grids.column("parameter", "parameter", flex=3, minWidth=180),
        grids.column("rank", "rank", number=True, maxWidth=90),
        grids.column("step", "largest in step", number=True, maxWidth=150),
        grids.column("std", "standard deviation", number=True, text=True, flex=1),
        grids.column("share", "of the mean norm", number=True, text=True, flex=1),
    ]
    return [grids.grid("repeat-parameters", columns, made, label="Parameters")]


@lru_cache(maxsize=4)
def _cached(folder: Any, threads: int) -> tuple[int, pd.DataFrame]:
    return Repetition(folder, ()).spread(threads)
