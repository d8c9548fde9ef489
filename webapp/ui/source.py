"""Lines of the program on a page: the named one, and its neighbours once it is opened."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from lanescope.webapp.analysis.source_lines import Excerpt, text_of
from lanescope.webapp.ui import widgets


def opened_by(head: str, found: Excerpt) -> Component:
    """Returns a place in the words of `head` with its line; opened, the lines around it."""
    lines = [
        html.Span(
            one["text"],
            className="named" if one["line"] == found["line"] else "",
            **widgets.attributes(data_line=str(one["line"])),
        )
        for one in found["lines"]
    ]
    summary = html.Summary([html.Span(head), " ", html.Code(text_of(found).strip())])
    return html.Details([summary, html.Pre(lines)], className="source")
