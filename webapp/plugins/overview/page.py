"""The first page: what a run is, how long a step takes and why, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.checks import Check, Report, metric_text
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.links import step_bounds, timeline_address
from lanescope.webapp.analysis.plugin import Figure, figures, load, metric
from lanescope.webapp.plugins.overview import ids, page_checks, page_recording
from lanescope.webapp.plugins.time import charts
from lanescope.webapp.plugins.time.breakdown import mean_steps
from lanescope.webapp.plugins.time.critical_path import critical_path, summed
from lanescope.webapp.plugins.time.job_steps import job_step, median_step
from lanescope.webapp.plugins.time.page import prediction_rows
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.plugins.time.what_if import ready_made
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import findings, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.pictures import sparkline

MAX_FIGURES = 6

_MAX_NAMES = 200
"""Characters of the names of imported files."""


def layout(context: Context) -> Component:
    """Returns the frame of the page; whatever reads all events of the run comes by callbacks."""
    return widgets.page(
        context.run.title,
        _lead(context.run),
        html.Div(states.loading("Computing the figures"), id=ids.FIGURES, className="cards"),
        html.Div(
            [
                html.Section(
                    [
                        html.H2(
                            [
                                "Step time by phase ",
                                html.Small(
                                    "mean over ranks · click a step to open it on the timeline"
                                ),
                            ]
                        ),
                        widgets.graph(ids.STEPS, height=300, what="the time of the steps"),
                    ],
                    className="panel",
                ),
                html.Section(
                    states.loading("Computing the critical path"), id=ids.PATH, className="panel"
                ),
            ],
            id=ids.TIME,
            className="split",
        ),
        html.Div(states.loading("Examining the run"), id=ids.EXAMINED),
        page_recording.section(context.run),
    )


def _lead(run: Run) -> list[Any]:
    processes = run.manifest["processes"]
    engines = ", ".join(sorted({p["engine"] for p in processes})) or "unknown"
    if run.imported:
        names = run.manifest["options"]["imported"]
        files = ", ".join(map(str, names if isinstance(names, list) else [names]))
        files = files if len(files) <= _MAX_NAMES else f"{files[:_MAX_NAMES]}…"
        return ["Imported from ", html.Code(files), f" · format {engines}"]
    command = " ".join(run.manifest["command"]) or "an unnamed program"
    hosts = len({p["clock"]["host"] for p in processes})
    torch = ", ".join(sorted({p["torch"] for p in processes}))
    created = run.manifest["created"][:16].replace("T", " ")
    facts = f"{created} · {units.counted(hosts, 'host')} · torch {torch} · {engines} engine, level "
    return [html.Code(command), f" · {facts}{run.manifest['level']}"]


def register(app: Dash, context: Context) -> None:
    """Fills the page: figures first, then the chart of steps, then findings and checks."""
    run = context.run

    @app.callback(
        Output(ids.FIGURES, "children"), Output(ids.FIGURES, "hidden"), Input(ids.FIGURES, "id")
    )
    def show_figures(_: str) -> tuple[list[Component], bool]:
        found = _figures(context)
        return found, not found

    @app.callback(
        Output(ids.STEPS, "figure"),
        Output(ids.TIME, "hidden"),
        Input(frame_ids.THEME, "data"),
    )
    def show_steps(theme: Theme | None) -> tuple[go.Figure, bool]:
        steps = mean_steps(run)
        return charts.step_bars(steps, theme or "light"), not steps["duration_ns"].any()

    @app.callback(Output(ids.PATH, "children"), Input(ids.PATH, "id"))
    def show_path(_: str) -> list[Component]:
        return _path(run)

    @app.callback(
        Output(ids.EXAMINED, "children"),
        Input(ids.EXAMINED, "id"),
        Input(frame_ids.EXAMINED, "data"),
    )
    def examine(_: str, __: int | None) -> Any:
        report = states.report_of(context)
        if report is None:
            return no_update
        return [*_findings(context, report), page_checks.section(context, report)]

    @app.callback(
        Output(ids.RECORDING, "children"),
        Input(ids.RECORDING_LINE, "n_clicks"),
        prevent_initial_call=True,
    )
    def list_recording(clicks: int) -> Any:
        return page_recording.contents(run) if clicks == 1 else no_update

    def address(point: dict[str, Any], _: str) -> str:
        first, last = (int(step) for step in point["customdata"][:2])
        return _steps_address(run, first, last)

    widgets.open_on_click(app, ids.STEPS, address)


def _steps_address(run: Run, first: int, last: int) -> str:
    """Address of steps on the timeline, of all ranks."""
    bounds = [
        found
        for rank in run.ranks
        for step in (first, last)
        if (found := step_bounds(run, rank, step)) is not None
    ]
    low, high = min(start for start, _ in bounds), max(end for _, end in bounds)
    return timeline_address(low, high, run.duration_ns)


def _figures(context: Context) -> list[Component]:
    """The first figures that the run has."""
    cards: list[Component] = []
    for figure in figures():
        limit = [context.settings.limit(figure.metric)] if figure.metric else []
        found = load(figure.measure)(context.run, *limit)
        if found is not None and len(cards) < MAX_FIGURES:
            cards.append(_card(figure, found))
    return cards


def _card(figure: Figure, found: Any) -> Component:
    return dcc.Link(
        [
            html.Span(figure.title, className="muted"),
            html.B(widgets.with_micro(found.value), className=found.tone),
            sparkline(found.course, found.tone or figure.colour),
            html.Small(widgets.with_micro(found.note), className="muted"),
        ],
        href=figure.link,
        className="card",
    )


MAX_PATH_ROWS = 6
MAX_PREDICTIONS = 3


def _path(run: Run) -> list[Component]:
    """The critical path of a median step in a few rows, and what would shorten it."""
    if median_step(run) is None:
        return []
    window = job_step(run, None)
    length = widgets.duration_text(window.end_ns - window.start_ns)
    title: list[Any] = [
        "Critical path of a median step ",
        html.Small(f"step {window.step}, {length}"),
    ]
    try:
        path = summed(critical_path(run), ["category", "name", "rank", "where"])
    except NotApplicable as reason:
        return [html.H2(title), html.P(f"Not shown: {reason}.", className="muted")]
    path = path.head(MAX_PATH_ROWS)
    most = float(path["duration_ns"].max())
    rows = [
        html.Div(
            [
                html.Span(
                    [
                        widgets.swatch(charts.CATEGORY_TOKENS[row.category]),
                        html.Span(
                            widgets.breakable(f"{short_title(row.name)}{_of_rank(run, row.rank)}"),
                            className="cut",
                        ),
                        " ",
                        html.Code(row.where) if row.where else "",
                    ],
                    title=f"{row.name}{_of_rank(run, row.rank)} {row.where}".strip(),
                ),
                html.I(className="bar", style={"--share": f"{row.duration_ns / most:.4f}"}),
                html.Span(widgets.duration_text(row.duration_ns), className="n"),
                html.Span(units.share_cell(row.share), className="n muted"),
            ],
            className=f"share {charts.CATEGORY_TOKENS[row.category]}",
        )
        for row in path.itertuples()
    ]
    return [
        html.H2(title),
        *rows,
        *_what_would_help(run),
        html.P(dcc.Link("Open Time →", href="/time")),
    ]


def _of_rank(run: Run, rank: int) -> str:
    """The rank, where a run has several."""
    return f", rank {rank}" if len(run.ranks) > 1 else ""


def _what_would_help(run: Run) -> list[Component]:
    try:
        predictions = ready_made(run)[:MAX_PREDICTIONS]
    except NotApplicable as reason:
        return [html.P(f"No prediction: {reason}.", className="muted")]
    if not predictions:
        return []
    return [
        html.H3(["What would help ", html.Small("predicted length of the step")]),
        *prediction_rows(predictions),
    ]


def _findings(context: Context, report: Report) -> list[Component]:
    """Limits that are not kept, findings, then warnings of the recording."""
    made = [_limit(one) for one in report.unexplained]
    if report.findings:
        made.append(findings.cards(context, report.findings))
    made += [widgets.note(units.sentence(warning), "warn") for warning in context.run.warnings]
    if made:
        return [html.H2("Findings"), *made]
    return [html.P(_nothing(report), className="muted")]


def _nothing(report: Report) -> str:
    """How much a run without findings was checked for."""
    answered = sum(one.answered for one in report.examined)
    if not answered:
        return "No check could run on this run. Each check below says what it needs."
    answered += len(report.checks)  # limits that are kept
    words = f"No problem found in {units.counted(answered, 'check')}"
    skipped = report.unchecked
    return words + (f"; {units.counted(skipped, 'check')} could not run" if skipped else "")


def _limit(one: Check) -> Component:
    """A metric that is over its limit."""
    about = metric(one.name)
    value, limit = (metric_text(one.name, number) for number in (one.value, one.limit))
    limits = f"{value}, limit {about.bound} {limit}"
    return widgets.note(
        [
            html.B("over the limit"),
            f" · {about.title}: {limits} · ",
            dcc.Link("Show", href=about.link),
        ],
        "bad",
    )
