"""How findings look on any page: what is wrong, since when, where, and the way there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.findings import AnalysisResult, Finding
from lanescope.webapp.analysis.plugin import kinds, load, pages
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.ui import pictures, source, widgets
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.finding_places import address_of

TONES = {"error": "bad", "warning": "warn", "info": ""}
NOUNS = {"error": "error", "warning": "warning", "info": "note"}
"""What the page calls findings of each severity."""


def cards(context: Context, found: Sequence[Finding], here: str = "") -> Component:
    """Returns the findings in the order given, each with the ways to its place on the timeline and
    to the pages of its kind other than `here`."""
    known = context.report().findings
    places = [known.index(one) if one in known else 0 for one in found]
    made = [_card(context, one, here, at) for one, at in zip(found, places, strict=True)]
    return html.Ol(made, className="findings")


def _card(context: Context, finding: Finding, here: str, position: int) -> Component:
    """A finding; `position`: which of all findings it is."""
    facts: list[Any] = [html.B(NOUNS[finding.severity]), finding.kind.replace("_", " ")]
    if finding.confidence == "likely":
        facts.append("likely")
    if finding.ranks:
        facts.append(ranks_in(context.run, finding.ranks))
    if finding.step is not None:
        facts.append(f"step {finding.step}")
    if finding.time_ns is not None:
        facts.append(f"since {widgets.duration_text(finding.time_ns)}")
    if finding.where:
        facts.append(html.Code(finding.where))
    tone = TONES[finding.severity]
    words = [
        html.Div([html.Span(fact) for fact in facts], className="facts"),
        _words(finding.title),
        *[source.opened_by(one["where"], one) for one in finding.source],
        html.Div(
            [
                dcc.Link(
                    "Show on the timeline",
                    href=address_of(context, finding, position),
                ),
                *[
                    dcc.Link(page.title, href=page.path)
                    for page in pages()
                    if finding.kind in page.kinds and page.name != here
                ],
            ],
            className="ways",
        ),
    ]
    drawn = _picture(context, finding)
    if drawn is None:
        return html.Li(words, className=f"finding {tone}".strip())
    return html.Li([html.Div(words), drawn], className=f"finding with-picture {tone}".strip())


def _words(title: str) -> Component:
    """What a finding says: its first sentence, which says what is wrong, stands out."""
    what, *rest = _SENTENCES.split(widgets.with_micro(title), maxsplit=1)
    return html.P([html.B(what), *[f" {one}" for one in rest]])


_SENTENCES = re.compile(r"(?<=[^\s.][.?!])(?<!\.[a-z]\.) (?=[A-Z])")
"""Between two sentences: no full stop of an abbreviation."""


def _picture(context: Context, finding: Finding) -> Component | None:
    """The evidence as a picture, where its kind has one."""
    kind = kinds()[finding.kind]
    found = load(kind.picture)(context.run, finding) if kind.picture else None
    return None if found is None else pictures.heat(found)


def tone(one: AnalysisResult) -> str:
    """Returns the class in which the result of a check is written."""
    return "bad" if one.failed else "muted" if one.unanswered else ""


def result_text(one: AnalysisResult) -> str:
    """Returns "passed", the number of problems (of notes, if all are information), or the reason
    why it was not checked."""
    if one.failed:
        return f"not checked: {one.failed}"
    if one.unanswered:
        return f"not checked: {one.unanswered}"
    number = len(one.findings) + one.omitted
    noted = all(finding.severity == "info" for finding in one.findings)
    return units.counted(number, NOUNS["info"] if noted else "problem") if number else "passed"
