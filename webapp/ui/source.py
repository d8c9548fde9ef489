"""A line of the program, with its neighbours when it is opened."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from lanescope.webapp.analysis.source import SourceLine


def excerpt(lines: Sequence[SourceLine], named: SourceLine | None) -> Component | None:
    """Returns the line `named`; it opens to all `lines`. None without one."""
    if named is None:
        return None
    width = len(str(lines[-1].number))
    rows = [
        html.Span(
            f"{line.number:>{width}}  {line.text}\n", className="named" if line is named else None
        )
        for line in lines
    ]
    return html.Details(
        [html.Summary(html.Code(named.text.strip())), html.Pre(rows)],
        className="source",
    )
