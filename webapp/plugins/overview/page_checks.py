"""Every check of the run, folded by area: passed, a problem, or what to do to have it checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.checks import Check, Report, metric_text
from lanescope.webapp.analysis.findings import AnalysisResult, ranked
from lanescope.webapp.analysis.plugin import Metric, metrics, questions
from lanescope.webapp.runs import units
from lanescope.webapp.ui import findings, widgets
from lanescope.webapp.ui.context import Context

AREAS = (
    "Communication",
    "Threads",
    "Ranks",
    "Data",
    "Losses",
    "Gradients",
    "Training loop",
    "Numerics",
    "Repeatability",
    "Set-up",
)
"""Areas of `Question.area` and `Metric.area`, in the order shown."""


def section(context: Context, report: Report) -> Component:
    """Returns one fold per area: first those with problems; those without any result are muted and
    come last."""
    area_of = {one.text: one.area for one in (*questions(), *questions(baseline=True))}
    checks = {one.name: one for one in report.checks}
    folds: list[tuple[int, Component]] = []
    for area in AREAS:
        asked = [one for one in report.examined if area_of.get(one.question, AREAS[-1]) == area]
        measured = [one for one in metrics() if one.area == area]
        if asked or measured:
            folds.append(_fold(context, report, area, asked, measured, checks))
    folds.sort(key=lambda fold: fold[0])
    source = context.settings.source
    return html.Div(
        [
            html.H2("Checks", id="checks"),
            html.Div([fold for _, fold in folds], className="areas"),
            html.P(
                [
                    "Limits are from " if source else "Limits are the defaults; ",
                    html.Code(source or "lanescope check"),
                    "" if source else " prints the same and sets an exit status.",
                ],
                className="muted",
            ),
        ]
    )


def _fold(
    context: Context,
    report: Report,
    area: str,
    asked: Sequence[AnalysisResult],
    measured: Sequence[Metric],
    checks: dict[str, Check],
) -> tuple[int, Component]:
    """(0: with problems, 2: without any result, 1: others; the fold)."""
    limits = [checks[one.name] for one in measured if one.name in checks]
    passed = sum(not one.findings for one in asked if one.answered) + sum(c.passed for c in limits)
    worst = [ranked(list(one.findings))[0].severity for one in asked if one.findings]
    worst += ["error" for one in limits if one in report.unexplained]
    worst += ["error" for one in asked if one.failed]
    unchecked = sum(one.recordable for one in asked if not one.answered)
    unchecked += sum(one.name not in checks and bool(one.bound) for one in measured)
    words: list[Any] = [area, " "]
    for severity in ("error", "warning", "info"):
        count = worst.count(severity)
        if count:
            tone = findings.TONES[severity]
            words += [html.B(units.counted(count, findings.NOUNS[severity]), className=tone), " "]
    if passed:
        words += [html.B(f"{units.count(passed)} passed", className="good"), " "]
    bare = not passed and not worst
    if unchecked or bare:
        text = f"{units.count(unchecked)} not checked" if unchecked else "not applicable"
        words.append(html.Span(text, className="muted"))
    rows = [_limit_row(report, one, checks) for one in measured]
    rows += [_row(context, one) for one in asked if one.findings or one.failed or one.recordable]
    clean = [one.question for one in asked if one.answered and not one.findings]
    apart = [f"{one.question}: {one.unanswered}" for one in asked if not one.applies]
    parts: list[Component] = [html.Summary(words)]
    if rows:
        table = widgets.plain_table(("check", "result", "limit", ""), rows)
        parts.append(html.Div(table, className="wide-table"))
    parts += [*_listed("Passed:", clean), *_listed("Not applicable:", apart)]
    place = 0 if worst else 2 if bare else 1
    return place, html.Details(parts, className="area muted-area" if bare else "area")


def _listed(title: str, texts: Sequence[str]) -> list[Component]:
    """Checks without a row of their own, under a title."""
    if not texts:
        return []
    return [html.P(title, className="muted"), html.Ul([html.Li(text) for text in texts])]


def _row(context: Context, one: AnalysisResult) -> list[Any]:
    if not one.findings:
        return [one.question, html.Span(findings.result_text(one), className=findings.tone(one))]
    worst = ranked(list(one.findings))[0]
    tone = findings.TONES[worst.severity]
    return [
        one.question,
        html.Span(
            [html.B(findings.result_text(one), className=tone), f" · {worst.title}"],
        ),
        "",
        dcc.Link("Show", href=context.address(worst.link)),
    ]


def _limit_row(report: Report, metric: Metric, checks: dict[str, Check]) -> list[Any]:
    name, one = metric.name, checks.get(metric.name)
    limit = f"{metric.bound} {metric_text(name, one.limit)}" if one else ""
    if name in report.unmeasured:
        state: Any = html.B(f"not checked: {report.unmeasured[name]}", className="bad")
    elif one is not None:
        tone, word = ("good", "passed") if one.passed else ("bad", "over the limit")
        state = html.Span(
            [html.B(word, className=tone), f" · {metric_text(name, one.value)}{one.note}"]
        )
    else:
        state = _value(metric, report.metrics[name])
    return [html.Span(metric.title, title=name), state, limit, dcc.Link("Show", href=metric.link)]


def _value(metric: Metric, value: Any) -> Component | str:
    """A metric without a limit, or one that was not measured."""
    values = value.values() if isinstance(value, dict) else [value]
    known = [one for one in values if one is not None]
    if not known:
        return html.Span(f"not checked: {metric.unmeasured}", className="muted")
    low, high = metric_text(metric.name, min(known)), metric_text(metric.name, max(known))
    return low if low == high else f"{low} to {high} over {units.count(len(known))} ranks"
