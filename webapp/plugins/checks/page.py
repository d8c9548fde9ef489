"""Every check of the run: its value, its limit, whether it passed, and what it is about."""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.checks import Report, number
from lanescope.webapp.analysis.findings import AnalysisResult, ranked
from lanescope.webapp.analysis.plugin import Metric, metrics
from lanescope.webapp.analysis.settings import Settings
from lanescope.webapp.runs import units
from lanescope.webapp.ui import findings, widgets
from lanescope.webapp.ui.context import Context


def layout(context: Context) -> Component:
    """Metrics against their limits, then every question with its answer."""
    report = context.report()
    source = context.settings.source
    limits = ["Limits are from ", html.Code(source)] if source else ["Limits are the defaults"]
    return widgets.page(
        "Checks",
        [*limits, "; ", html.Code("lanescope check"), " prints the same and sets an exit status."],
        _verdict(report),
        html.H2("Limits"),
        _limits(report, context.settings),
        html.H2("Questions"),
        _questions(context, report),
    )


def _verdict(report: Report) -> Component:
    failed = sum(not one.passed for one in report.checks)
    limits = sum(bool(one.bound) for one in metrics())
    words = f"{units.count(len(report.checks))} of {limits} limits could be measured"
    if not report.errors:
        return widgets.note([html.B("passed"), f" · {words}, and no finding is an error."], "good")
    said = f"{units.counted(report.errors, 'error')} · {words}"
    if failed:
        said += f", {failed} {'is' if failed == 1 else 'are'} not kept"
    return widgets.note([html.B("failed"), f" · {said}."], "bad")


def _limits(report: Report, settings: Settings) -> Component:
    held = {one.name: one for one in report.checks}
    rows: list[list[Any]] = []
    for metric in metrics():
        name, value = metric.name, report.metrics[metric.name]
        one = held.get(name)
        if name in report.unmeasured:
            verdict: Any = html.B("not checked", className="bad", title=report.unmeasured[name])
        elif one is not None:
            tone, word = ("good", "passed") if one.passed else ("bad", "failed")
            verdict = html.B(word, className=tone)
        else:
            verdict = html.Span("not measured", className="muted") if _absent(value) else "–"
        limit = "–"
        if metric.bound:
            limit = f"{metric.bound} {number(name, settings.limit(name))}"
        rows.append(
            [
                html.Span(metric.title, title=name),
                report.unmeasured.get(name) or _value(metric, value),
                limit,
                verdict,
                dcc.Link("show", href=metric.link),
            ]
        )
    return widgets.plain_table(("check", "value", "limit", "", ""), rows)


def _absent(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else [value]
    return all(one is None for one in values)


def _value(metric: Metric, value: Any) -> Component | str:
    name = metric.name
    if _absent(value):
        return html.Span(metric.unmeasured, className="muted")
    if not isinstance(value, dict):
        return number(name, value)
    known = [one for one in value.values() if one is not None]
    low, high = number(name, min(known)), number(name, max(known))
    return low if low == high else f"{low} to {high} over {units.count(len(known))} ranks"


def _questions(context: Context, report: Report) -> Component:
    head = ("asked", "answer", "most severe", "") if report.findings else ("asked", "answer")
    rows = [_question(context, one)[: len(head)] for one in report.examined]
    return widgets.plain_table(head, rows)


def _question(context: Context, one: AnalysisResult) -> list[Any]:
    if not one.findings:
        answer = html.Span(findings.answer(one), className=findings.tone(one))
        return [one.question, answer, "", ""]
    worst = ranked(list(one.findings))[0]
    tone = findings.TONES[worst.severity]
    return [
        one.question,
        findings.answer(one),
        html.Span([html.B(worst.severity, className=tone), f" {worst.title}"]),
        dcc.Link("show", href=context.address(worst.link)),
    ]


def register(app: Dash, context: Context) -> None:
    """Nothing on this page changes."""
