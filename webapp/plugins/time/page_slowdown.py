"""The panel of the Time page about what stragglers cost."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.time import charts, ids
from lanescope.webapp.plugins.time.breakdown import CATEGORIES
from lanescope.webapp.plugins.time.slowdown import MIN_SLOWDOWN, Slowdown, slowdown
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import ranks_text
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui import states, widgets
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.colours import Theme

MAX_WORKERS = 12


def slowdown_panel(run: Run) -> Component:
    """Returns the slowdown by rank and step, and sentences about it."""
    heat = widgets.graph(
        ids.SLOWDOWN_HEAT,
        height=110 + 22 * min(len(run.ranks), 16),
        what="the slowdown by each rank",
    )
    words = html.Div(states.loading("Replaying all steps with ideal durations"), id=ids.SLOWDOWN)
    about = "if this rank kept its own times and all others took the mean · click for that step"
    return widgets.panel(
        "Slowdown by stragglers", about, html.Div([heat, words], className="split")
    )


def _slowdown_words(found: Slowdown) -> list[Component]:
    """Sentences about what stragglers cost the job, and what causes it."""
    ideal, length = widgets.duration_text(found.ideal_ns), widgets.duration_text(found.step_ns)
    if found.slowest_share is None:
        text = f"Steps take {length}, and {ideal} with all work spread evenly over the ranks: no "
        return [html.P([text, "rank slows the others."])]
    text = (
        f"Steps take {length}, and {ideal} with all work spread evenly over the ranks: "
        f"{units.share(found.wasted)} of the time is lost. "
    )
    word = "rank" if len(found.slowest) == 1 else "ranks"
    who = f"{word} {ranks_text(found.slowest)}"
    fixed = f"{units.sentence(found.slowest_part)} of that is due to the slowest, {who}."
    if found.slowest_share <= 0:  # without it others are as slow, at other steps
        fixed = "No single rank causes that."
    if found.last_stage_share is not None:
        share = units.share(found.last_stage_share)
        fixed += f" The last pipeline stage (ranks {ranks_text(found.last_stage)}): {share}."
    rows: list[tuple[widgets.Child, str]] = [
        (
            html.Span([widgets.swatch(charts.CATEGORY_TOKENS[name]), CATEGORIES[name]]),
            f"×{factor:.2f}",
        )
        for name, factor in sorted(found.operations.items(), key=lambda one: -one[1])
        if factor >= MIN_SLOWDOWN
    ]
    rows += [
        (f"rank {rank}", f"×{factor:.2f}")
        for rank, factor in sorted(found.workers.items(), key=lambda one: -one[1])[:MAX_WORKERS]
        if factor >= MIN_SLOWDOWN
    ]
    table = widgets.plain_table(("if all else were ideal", "slowdown"), rows, (1,))
    return [html.P([html.B(f"×{found.job:.2f} "), text, fixed]), table]


def register(app: Dash, run: Run) -> None:
    """Fills the panel once it is on the page."""

    @app.callback(
        Output(ids.SLOWDOWN, "children"),
        Output(ids.SLOWDOWN_HEAT, "figure"),
        Output(ids.SLOWDOWN_HEAT, "style"),
        Input(ids.SLOWDOWN, "id"),
        Input(frame_ids.THEME, "data"),
    )
    def slow(_: str, theme: Theme | None) -> tuple[Any, go.Figure, Any]:
        try:
            found = slowdown(run)
        except NotApplicable as reason:
            words = html.P(f"Not measured: {reason}.", className="muted")
            return words, empty_figure(""), {"display": "none"}
        figure = charts.slowdown_heat(found.by_step, theme or "light")
        return _slowdown_words(found), figure, no_update
