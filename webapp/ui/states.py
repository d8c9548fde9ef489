"""Parts shown while something is computed, where a run does not hold it, and after an error."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from dash import ctx, html, no_update, set_props
from dash.development.base_component import Component

from lanescope.webapp.analysis.checks import Report
from lanescope.webapp.analysis.findings import NotApplicable, fault
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.ui import ids
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.context import Context

_log = logging.getLogger(__name__)

_FAILED = "This could not be computed."
RELOAD = "Everything else works. Reload the page to try again."


def loading(what: str) -> Component:
    """Returns the words "`what` …", which show if computing takes longer than a moment."""
    return html.P(f"{what} …", className="loading")


PATIENCE_S = 2.0
"""How long a part of a page waits for the report of the run: a browser has six connections to a
server, and those that wait for minutes would hold up everything else."""


def report_of(context: Context, patience_s: float = PATIENCE_S) -> Report | None:
    """Returns the report. None where it takes longer: EXAMINED changes when it is there."""
    report = context.report_within(patience_s)
    if report is None:
        set_props(ids.EXAMINING, {"disabled": False})
        set_props(ids.HEALTH, {"className": "pill examining"})
    return report


def body_place(what: str) -> Component:
    """Returns the place of `Page.body`: until that comes it says that `what` is being done."""
    return html.Div(loading(what), id=ids.PAGE_BODY, className="page-body")


def empty(title: str, *children: Any) -> Component:
    """Returns what would be here (a sentence), and how to get it."""
    return html.Div([html.B(title), *children], className="empty")


def _words_of(error: Exception, name: str) -> tuple[str, str]:
    """Returns a title for an exception raised in `name`, and the reason; logs a fault."""
    if isinstance(error, NotApplicable):
        return "Not shown.", f"Reason: {error}."
    if isinstance(error, RunError):
        return _FAILED, str(error)
    words = fault(name, error)
    _log.error("%s", words)
    _log.debug("its traceback", exc_info=error)  # whatever a browser sends may lead here
    return _FAILED, f"{words[0].upper()}{words[1:]}. {RELOAD}"


def failed(error: Exception, name: str = "a part of the page") -> Component:
    """Returns the sentences about an exception raised in `name`, for the place of its result."""
    title, why = _words_of(error, name)
    kind = "empty" if isinstance(error, NotApplicable) else "empty failed"
    # May be put into a paragraph, where a div cannot be.
    return html.Span([html.B(title), html.Span(why)], role="alert", className=kind)


def error_outputs(error: Exception) -> list[Any] | Any | None:
    """Returns the values of the running callback's outputs after an exception.

    The first that holds components says what is wrong, charts point to it, tables are empty. None
    if no output can say it.
    """
    outputs = ctx.outputs_list
    several = isinstance(outputs, list)
    listed: Sequence[dict[str, Any]] = outputs if several else [outputs]
    place = next((one for one in listed if one["property"] == "children"), None)
    if not place and all(one["property"] != "figure" for one in listed):
        return None
    words = _FAILED if place else " ".join(_words_of(error, "a chart"))
    empty = {
        "children": [],
        "rowData": [],
        "getRowsResponse": {"rowData": [], "rowCount": 0},
        "figure": empty_figure(words),
    }
    values = [
        [failed(error)] if one is place else empty.get(one["property"], no_update) for one in listed
    ]
    return values if several else values[0]
