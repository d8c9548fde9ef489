"""Where a step goes, what limits it, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.plugins.flame.page_section import Section
from lanescope.webapp.plugins.time import charts, ids, page_slowdown
from lanescope.webapp.plugins.time.breakdown import (
    CATEGORIES,
    categories,
    mean_steps,
    step_time,
    training_thread,
)
from lanescope.webapp.plugins.time.changes import category_changes, steady, step_changes
from lanescope.webapp.plugins.time.critical_path import (
    PATH_CATEGORIES,
    UNEXPLAINED,
    critical_path,
    summed,
)
from lanescope.webapp.plugins.time.job_steps import job_step, job_steps, median_step
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.plugins.time.what_if import Prediction, ready_made, what_if
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_FLAME = Section(ids.FLAME, width_px=700)

_MAX_ROWS = 12
_MAX_LANES = 24
"""Lanes of the path's chart: of more ranks, those on the path and others that wait least."""

_ORDERS = ("slowest first", "by number")
"""How the ranks of all steps are sorted, from the top."""


_LEAD = "Where a step goes, what limits it, and what would help."


def layout(_: Context) -> Component:
    """Returns the head of the page; `body` reads the steps of all ranks."""
    return widgets.page("Time", _LEAD, states.body_place("Adding up the time of all steps"))


def body(context: Context) -> list[Component]:
    """Returns the chosen step's critical path with its parts, predictions, and all steps."""
    run = context.run
    step = median_step(run)
    if step is None:
        return [
            states.empty(
                "This run holds no training step.",
                "A step ends with ",
                html.Code("optimizer.step()"),
                ", or with ",
                html.Code("lanescope.collector.step()"),
                " in the program.",
            )
        ]
    return [
        _step_field(run, step),
        *([] if context.baseline is None else [_changes_panel(context.baseline, run)]),
        _path_panel(run),
        html.Div([_table_panel(), _what_if_panel()], className="split"),
        widgets.panel("Flame graph", "what all threads did in the step", _FLAME.layout(context)),
        _steps_panel(run),
        *([page_slowdown.slowdown_panel(run)] if len(run.ranks) > 1 else []),
        widgets.downloads(
            "step_time",
            "critical_path",
            *(["worker_slowdown"] if len(run.ranks) > 1 else []),
        ),
    ]


def _step_field(run: Run, step: int) -> Component:
    known = [one.step for one in job_steps(run)]
    return widgets.controls(
        html.Label("step", htmlFor=ids.STEP),
        dcc.Input(
            id=ids.STEP,
            type="number",
            value=step,
            min=known[0],
            max=known[-1],
            step=1,
            className="step-box",
        ),
        html.Span(id=ids.ABOUT, className="muted"),
    )


def _path_panel(run: Run) -> Component:
    about = (
        "one line through all ranks, threads and streams, as long as the step · click a piece to "
        "open it on the timeline"
    )
    if len(run.ranks) > _MAX_LANES:
        about += " · below are the ranks on it, and the slowest of the others"
    chart = widgets.graph(
        ids.PATH, height=120 + 30 * min(len(run.ranks), _MAX_LANES), what="the critical path"
    )
    return widgets.panel("Critical path", about, chart)


def _table_panel() -> Component:
    return widgets.panel(
        "On the path",
        "",
        html.Div(
            states.loading("Computing the critical path"),
            id=ids.TABLE,
            className="wide-table path-table",
        ),
    )


def _what_if_panel() -> Component:
    own = widgets.controls(
        html.Label("your own", htmlFor=ids.SPEC),
        dcc.Input(id=ids.SPEC, placeholder="op=aten::mm*:x0.5", className="find-box"),
        html.Button("Predict", id=ids.PREDICT, className="run"),
    )
    return widgets.panel(
        "What if",
        "predicted length of the step; a bar is what it saves",
        html.Div(states.loading("Predicting what changes would gain"), id=ids.PREDICTIONS),
        own,
    )


def _steps_panel(run: Run) -> Component:
    spent = mean_steps(run)
    shown = [name for name in CATEGORIES if spent[f"{name}_ns"].any()]
    largest = max(shown, key=lambda name: float(spent[f"{name}_ns"].sum()))
    options = [{"label": CATEGORIES[name], "value": name} for name in shown]
    return widgets.panel(
        "All steps",
        "share of each step · click for that step",
        widgets.controls(
            widgets.choice("category", ids.CATEGORY, options, largest),
            *([widgets.choice("ranks", ids.ORDER, _ORDERS)] if len(run.ranks) > 1 else []),
        ),
        widgets.graph(
            ids.HEAT, height=110 + 22 * min(max(len(run.ranks), 3), 16), what="all steps"
        ),
    )


def _changes_panel(base: Run, run: Run) -> Component:
    """What got longer than in the baseline."""
    try:
        table = step_changes(base, run)
    except NotApplicable as reason:
        return widgets.panel("Against the baseline", "", html.P(f"Not compared: {reason}."))
    kept = steady(table)
    means = kept.mean()
    length, before = float(means["duration_ns"]), float(means["base_duration_ns"])
    found = category_changes(kept)
    more = "longer" if length >= before else "shorter"
    change = abs(length - before) / max(before, 1.0)
    words = (
        f"A step takes {widgets.duration_text(length)}, {units.share(change)} {more} than in the "
        f"baseline ({widgets.duration_text(before)}): mean of {units.counted(len(kept), 'step')}"
        f"{'' if len(kept) == len(table) else ' without the first'}."
    )
    titles, times = grids.before_and_now(found["base_ns"], found["run_ns"])
    rows = [
        (html.Span([widgets.swatch(charts.CATEGORY_TOKENS[name]), CATEGORIES[name]]), *texts)
        for name, texts in zip(found["category"], times, strict=True)
    ]
    heads = ("category", *titles)
    chart = widgets.graph(ids.CHANGES, height=300, what="the difference from the baseline")
    right = html.Div([html.P(words), widgets.plain_table(heads, rows, (1, 2, 3))])
    about = "mean over the ranks · click for that step"
    return widgets.panel("Against the baseline", about, html.Div([chart, right], className="split"))


def register(app: Dash, context: Context) -> None:
    """Fills the page for the chosen step."""
    run = context.run

    @app.callback(
        Output(ids.STEP, "value"),
        Input(ids.HEAT, "clickData"),
        Input(ids.SLOWDOWN_HEAT, "clickData", allow_optional=True),
        Input(ids.CHANGES, "clickData", allow_optional=True),
        prevent_initial_call=True,
    )
    def choose(*_: dict[str, Any] | None) -> Any:
        point = (ctx.triggered[0]["value"] or {}).get("points", [{}])[0]
        return int(point["x"]) if "x" in point else no_update

    @app.callback(
        Output(ids.PATH, "figure"),
        Output(ids.TABLE, "children"),
        Output(ids.ABOUT, "children"),
        Input(ids.STEP, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def show(step: int | None, theme: Theme | None) -> tuple[go.Figure, Any, str]:
        try:
            return _shown(run, step, theme or "light")
        except NotApplicable as reason:
            return empty_figure(str(reason)), [], ""

    def window_of(step: int | None) -> tuple[int, int]:
        chosen = job_step(run, step)
        return chosen.start_ns, chosen.end_ns

    _FLAME.register(app, context, Input(ids.STEP, "value"), window_of)

    @app.callback(
        Output(ids.PREDICTIONS, "children"),
        Input(ids.STEP, "value"),
        Input(ids.PREDICT, "n_clicks"),
        Input(ids.SPEC, "n_submit"),
        State(ids.SPEC, "value"),
    )
    def predict(step: int | None, _: int | None, __: int | None, spec: str | None) -> Any:
        return _predictions(run, step, spec or "")

    @app.callback(
        Output(ids.HEAT, "figure"),
        Input(ids.CATEGORY, "value"),
        Input(ids.ORDER, "value", allow_optional=True),
        Input(frame_ids.THEME, "data"),
    )
    def heat(category: str, order: str | None, theme: Theme | None) -> go.Figure:
        name = category if category in CATEGORIES else next(iter(CATEGORIES))
        ranks = None if order == _ORDERS[1] else _slowest(run)
        return charts.category_heat(step_time(run), name, theme or "light", ranks)

    widgets.open_on_click(app, ids.PATH, lambda point, _: _path_address(run, point))
    if context.baseline is not None:
        _register_changes(app, context.baseline, run)
    if len(run.ranks) > 1:
        page_slowdown.register(app, run)


def _path_address(run: Run, point: dict[str, Any]) -> str:
    """Returns where the timeline shows a point of the critical path."""
    start, end = (int(one) for one in point["customdata"][:2])
    return timeline_address(start, end, run.duration_ns)


def _register_changes(app: Dash, base: Run, run: Run) -> None:
    @app.callback(
        Output(ids.CHANGES, "figure"), Input(ids.CHANGES, "id"), Input(frame_ids.THEME, "data")
    )
    def differ(_: str, theme: Theme | None) -> go.Figure:
        return charts.change_bars(step_changes(base, run), theme or "light")


def _shown(run: Run, step: int | None, theme: Theme) -> tuple[go.Figure, Component, str]:
    """The chart, the table and a line about a step."""
    window = job_step(run, step)
    path = critical_path(run, step)
    first = {rank: (rank, training_thread(run, rank).thread) for rank in run.ranks}
    on_path = [*dict.fromkeys(zip(path["rank"], path["thread"], strict=True))]
    others = [first[rank] for rank in _slowest(run, window.step)]
    lanes = [*dict.fromkeys([*on_path, *others])]
    lanes = lanes[: max(_MAX_LANES, len(on_path))]
    lanes.sort(key=lambda lane: (lane[0], lane != first[lane[0]]))
    known = widgets.thread_names(run)
    names = {
        lane: f"rank {lane[0]}" + ("" if lane == first[lane[0]] else f" · {known[lane]}")
        for lane in lanes
    }
    drawn = {rank: categories(run, rank) for rank in run.ranks if first[rank] in names}
    figure = charts.path_lanes(path, window, drawn, names, theme)
    unexplained = int(path.loc[path["category"] == UNEXPLAINED, "duration_ns"].sum())
    about = widgets.duration_text(window.end_ns - window.start_ns)
    about += ", of median length" if window.step == median_step(run) else ""
    about += f" · {widgets.duration_text(unexplained)} unexplained" if unexplained else ""
    return figure, _table(run, path), about


def _slowest(run: Run, step: int | None = None) -> list[int]:
    """All ranks, first those that wait least for others in the step, or in all steps."""
    times = step_time(run)
    chosen = times if step is None else times[times["step"] == step]
    waits = chosen.groupby("rank")["waiting_for_ranks_ns"].sum()
    return sorted(run.ranks, key=lambda rank: waits.get(rank, 0))


def _table(run: Run, path: Any) -> Component:
    rows = []
    keys = ["category", "name", "rank", "thread", "where"]
    shown = summed(path, keys).head(_MAX_ROWS)
    time, texts = grids.in_unit("time", shown["duration_ns"])
    for row, text in zip(shown.itertuples(), texts, strict=True):
        same = path[(path[keys] == [getattr(row, key) for key in keys]).all(axis=1)]
        longest = same.loc[same["duration_ns"].idxmax()]
        start, end = int(longest["start_ns"]), int(longest["end_ns"])
        lane = (thread_lane(int(row.rank), str(row.thread)), start)
        address = timeline_address(start, end, run.duration_ns, at=lane)
        rows.append(
            (
                html.Span(
                    [
                        widgets.swatch(charts.CATEGORY_TOKENS[row.category]),
                        PATH_CATEGORIES[row.category],
                    ]
                ),
                dcc.Link(widgets.breakable(short_title(row.name)), href=address, title=row.name),
                str(row.rank),
                html.Code(row.where) if row.where else "",
                text,
                units.share_cell(row.share),
            )
        )
    heads = ("category", "what", "rank", "where", time, "share")
    return widgets.plain_table(heads, rows, (2, 4, 5))


def _predictions(run: Run, step: int | None, spec: str) -> list[Component]:
    """Rows of bars, one's own first; why there are none."""
    made: list[Component] = []
    found: list[Prediction] = []
    if spec.strip():
        try:
            found += what_if(run, [spec.strip()], step)
        except ValueError as error:
            made.append(widgets.note(f"{error}.", "warn"))
    try:
        found += ready_made(run, step)
    except NotApplicable as reason:
        return [*made, html.P(f"No prediction: {reason}.", className="muted")]
    if not found:
        return [*made, html.P("No ready-made change gains 2 % or more.", className="muted")]
    return [*made, *prediction_rows(found)]


def prediction_rows(found: Sequence[Prediction]) -> list[Component]:
    """Returns a row for each change: its words, the share of the step it saves, the rest."""
    return [
        html.Div(
            [
                html.Span(one.words, title=one.spec),
                html.I(className="bar", style={"--share": f"{max(0, 1 - 1 / one.speedup):.4f}"}),
                html.Span(widgets.duration_text(one.step_ns), className="n"),
                html.B(f"×{one.speedup:.2f}", className="n good" if one.speedup > 1 else "n"),
            ],
            className="share prediction",
        )
        for one in found
    ]
