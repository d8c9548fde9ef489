"""Data races, deadlocks and shared gradients: findings above, every racing pair below."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.plugins.races.race_findings import race_findings, races
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import states, widgets
from lanescope.webapp.ui.context import Context

_PAIRS = "races-pairs"
"""Id of the component that holds the table."""

_MAX_ROWS = 200

_LEAD = (
    "A data race: two threads or streams use the same memory, at least one of them writes, and no "
    "recorded synchronisation orders the two accesses."
)


def layout(_: Context) -> Component:
    """Returns the table comes by a callback: looking for races reads all accesses of the run."""
    return widgets.page(
        "Races and deadlocks",
        _LEAD,
        html.H2("Racing pairs"),
        html.Div(states.loading("Looking for data races"), id=_PAIRS, className="wide-table"),
        widgets.downloads("races"),
    )


def register(app: Dash, context: Context) -> None:
    """Fills the table."""

    @app.callback(Output(_PAIRS, "children"), Input(_PAIRS, "id"))
    def show(_: str) -> Component:
        return _pairs(context.run)


def _pairs(run: Run) -> Component:
    try:
        race_findings(run)
    except NotApplicable as reason:
        return widgets.note(f"Not checked: {reason}.")
    table = races(run)
    if table.empty:
        return widgets.note("No data race between recorded accesses.", "good")
    known = widgets.thread_names(run)
    rows = [
        (
            row["tensor"] or "an unnamed tensor",
            str(row["rank"]),
            _access(row, "first", known),
            _access(row, "second", known),
            "yes" if row["overlapped"] else "no",
            units.count(row["pairs"]),
            dcc.Link("Show", href=_address(run, row)),
        )
        for row in table.head(_MAX_ROWS).to_dict("records")
    ]
    heads = ("tensor", "rank", "first access", "second access", "at once", "times", "")
    return widgets.plain_table(heads, rows, (1, 5))


def _access(row: dict[str, Any], side: str, known: dict[tuple[int, str], str]) -> Component:
    thread = str(row[f"{side}_thread"])
    on = known.get((row["rank"], thread), thread)
    words = f"{row[f'{side}_access']} by {row[f'{side}_op']} on {on} "
    where = row[f"{side}_where"]
    return html.Span([words, html.Code(where) if where else ""])


def _address(run: Run, row: dict[str, Any]) -> str:
    instants = sorted((int(row["first_time_ns"]), int(row["second_time_ns"])))
    return timeline_address(instants[0], instants[1], run.duration_ns)
