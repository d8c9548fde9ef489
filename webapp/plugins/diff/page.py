"""This run beside its baseline: values of ops, op counts and gradient norms by step."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import (
    AROUND_NS,
    calls_address,
    step_link,
    thread_lane,
    timeline_address,
)
from lanescope.webapp.plugins.diff import charts, ids, verdict_words
from lanescope.webapp.plugins.diff.diff import Comparison, compare
from lanescope.webapp.plugins.diff.timing_differences import Timing
from lanescope.webapp.plugins.diff.values.closeness import MODES, Mode
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.page_selection import selection_in

MODE_WORDS = {
    "bitwise": "bitwise",
    "tolerance": "within the tolerance of the dtype",
    "simple": "within 1e-4",
}
_TONES = {"identical": "good", "within_tolerance": "good", "diverged": "bad"}
_MAX_ROWS = 10_000
"""Rows sent to the browser; the differing ones come first."""


def layout(context: Context) -> Component:
    """Returns the comparison, or how to get one."""
    base = context.baseline
    if base is None:
        command = f"lanescope view {shlex.quote(context.run.title)} --baseline OTHER_RUN"
        return widgets.page(
            "Compare",
            "Two recordings side by side, aligned by rank, step and name.",
            states.empty(
                "This run has no baseline.",
                html.P(["Open this run together with another one: ", html.Code(command)]),
                html.P(
                    "This page then shows the first difference, the step from which gradient norms "
                    "differ, and the ops that ran more or less often or took longer."
                ),
            ),
        )
    ranks = _ranks(context.run, base)
    return widgets.page(
        "Compare",
        [
            html.B(context.run.title),
            " compared with the baseline ",
            html.B(base.title),
            ", aligned by rank, step and name",
            "."
            if context.noise is None
            else f"; differences between the baseline and {context.noise.title} are allowed.",
        ],
        widgets.controls(
            widgets.choice(
                "equality",
                ids.DIFF_MODE,
                [{"label": MODE_WORDS[m], "value": m} for m in MODES],
                "bitwise" if context.noise is None else "tolerance",
            )
        ),
        html.Div(states.loading("Comparing the two runs"), id=ids.DIFF_BODY),
        widgets.controls(widgets.choice("rank", ids.DIFF_RANK, widgets.rank_options(ranks))),
        html.H2("Gradient norm per step"),
        widgets.graph(ids.DIFF_CHART, height=340, what="the gradient norms of both runs"),
        html.Div(
            [
                html.H2("How the difference grows, by step"),
                widgets.graph(ids.DIFF_GROWTH, height=320, what="how the difference grows"),
                html.H2("By layer"),
                widgets.graph(ids.DIFF_LAYERS, height=460, what="the difference by layer"),
            ],
            id=ids.DIFF_GROWN,
            hidden=True,
        ),
        html.Div(id=ids.DIFF_TABLES),
    )


def register(app: Dash, context: Context) -> None:
    """Fills verdict, tables and chart for the mode, the rank and the theme."""
    base = context.baseline
    if base is None:
        return
    grids.answer_rows(app, *(f"diff-{kind}" for kind in ("tensor", "gradient", "op", "timing")))

    @app.callback(
        Output(ids.DIFF_BODY, "children"),
        Output(ids.DIFF_TABLES, "children"),
        Output(ids.DIFF_RANK, "value"),
        Input(ids.DIFF_MODE, "value"),
        State(frame_ids.LOCATION, "search"),
    )
    def show(mode: Mode, search: str | None) -> tuple[list[Any], list[Any], Any]:
        result = _compared(base, context.run, mode, context.noise)
        # At first the rank that parted first; later the one that was chosen.
        first = -1 if result.first is None else result.first["rank"]
        chosen = ctx.triggered_id is not None or first not in _ranks(context.run, base)
        chosen |= selection_in(search).rank is not None
        rank = no_update if chosen else first
        return verdict_part(result, context, base), difference_tables(result, context), rank

    @app.callback(
        Output(ids.DIFF_GROWTH, "figure"),
        Output(ids.DIFF_LAYERS, "figure"),
        Output(ids.DIFF_GROWN, "hidden"),
        Input(ids.DIFF_MODE, "value"),
        Input(ids.DIFF_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def grow(mode: Mode, rank: int, theme: Theme | None) -> tuple[go.Figure, go.Figure, bool]:
        growth = _compared(base, context.run, mode, context.noise).growth
        shown = theme or "light"
        if not len(growth) or not growth["differing"].any():
            return go.Figure(), go.Figure(), True
        by_step = charts.growth_by_step(growth, rank, shown)
        return by_step, charts.growth_by_layer(growth, rank, shown), False

    @app.callback(
        Output(ids.DIFF_CHART, "figure"),
        Input(ids.DIFF_MODE, "value"),
        Input(ids.DIFF_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw(mode: Mode, rank: int, theme: Theme | None) -> go.Figure:
        table = _compared(base, context.run, mode, context.noise).table
        return charts.norms_chart(table, rank, theme or "light")


def _ranks(run: Run, base: Run) -> list[int]:
    """Those to choose from: of both, if there is any."""
    return [rank for rank in run.ranks if rank in base.ranks] or list(run.ranks)


def verdict_part(result: Comparison, context: Context, base: Run) -> list[Any]:
    """Returns the verdict, the first difference with a link to it, and the same to paste
    elsewhere."""
    alone = verdict_words.uncompared(result)
    word = verdict_words.headline(result)
    text = verdict_words.verdict_markdown(result, base.title, context.run.title)
    return [
        widgets.note(
            [html.B(_sentence(word)), f" · {verdict_words.compared_counts(result)}"],
            _TONES[result.verdict],
        ),
        *([] if alone is None else [widgets.note(_sentence(alone))]),
        *_first(result, context),
        *(widgets.note(_sentence(note)) for note in result.notes),
        html.Details([html.Summary("Verdict as Markdown"), html.Pre(text)], className="pasted"),
    ]


def _sentence(note: str) -> str:
    """As it stands on its own; the name of an operator keeps its letters."""
    return note if "::" in note.partition(" ")[0] else units.sentence(note)


def difference_tables(result: Comparison, context: Context) -> list[Any]:
    """Returns what differs, row by row; each row leads to its place in the run."""
    table = result.table
    different = table["state"] != "identical"
    titles = {
        "tensor": "Tensors of ops that differ",
        "gradient": "Gradient norms that differ",
        "op": "Ops that ran more or less often",
    }
    made: list[Any] = []
    for kind, title in titles.items():
        if kind == "tensor" and not (table["kind"] == kind).any():
            continue
        made += [html.H2(title), _table(kind, table[different & (table["kind"] == kind)], context)]
    if result.timing is not None and result.timing.steps:
        made += [html.H2("Time per step"), *_timing(result.timing)]
    return made


def _timing(timing: Timing) -> list[Any]:
    """What takes longer or shorter, by op and module."""
    lead = html.P(f"{_sentence(verdict_words.step_times(timing))}.", className="muted")
    rows = timing.changed.head(_MAX_ROWS)
    if rows.empty:
        return [lead]
    made = [
        {
            "link": calls_address(row.name),
            "op": row.name,
            "module": row.module,
            "state": row.state,
            "ratio": row.ratio,
            "ratio_text": verdict_words.ratio_text(row),
            "calls": " / ".join(units.number(of) for of in (row.base_calls, row.run_calls)),
            **{f"{name}": getattr(row, f"{name}_ns") for name in ("base", "run", "difference")},
        }
        for row in rows.itertuples()
    ]
    columns = [
        grids.column("op", "op", flex=3, minWidth=180),
        grids.column("module", "module", flex=2),
        grids.column("base", "self, baseline", base="ns", together="times", flex=1, minWidth=148),
        grids.column("run", "self, this run", base="ns", together="times", flex=1, minWidth=148),
        grids.column("difference", "difference", base="ns", together="times", flex=1, minWidth=120),
        grids.column("ratio", "times", number=True, text=True, flex=1),
        grids.column("calls", "calls, baseline / run", flex=1, minWidth=160),
        grids.column("state", "state", flex=1, minWidth=128),
    ]
    grid = grids.grid("diff-timing", columns, made, label="Time per step", leads="link", paged=True)
    return [lead, grid]


def _first(result: Comparison, context: Context) -> list[Any]:
    first = result.first
    if first is None:
        return []
    if "parameter" not in first:
        source = verdict_words.origin(first)
        card = _card_of(first, context)
        if card is not None:
            words = f" · {verdict_words.difference_values(first)}"
            words += f" · {source}" if source and source not in card.title else ""
            return [widgets.note([html.B("First difference"), words]), *_around(first)]
        link = dcc.Link(
            "show it on the timeline",
            href=context.address(verdict_words.difference_address(context.run, first)),
        )
        words = (
            f" · {verdict_words.difference_place(first)}"
            + (f" · {source}" if source else "")
            + " · "
        )
        return [widgets.note([html.B("First difference"), words, link]), *_around(first)]
    sides = " against ".join(_norm(first[side]["norm"]) for side in ("run", "base"))
    text = f"step {first['step']}, rank {first['rank']}, {first['parameter']}: {sides}"
    return [widgets.note([html.B("First difference"), f" · {text} in the baseline"])]


def _card_of(first: dict[str, Any], context: Context) -> Finding | None:
    """The finding above that says where this difference is, and leads to it."""
    report = context.report_within(states.PATIENCE_S)
    place = (first["step"], first["rank"], first["where"])
    cards = [] if report is None else [one for one in report.findings if one.kind == "divergence"]
    return next((one for one in cards if (one.step, one.rank, one.where) == place), None)


def _around(first: dict[str, Any]) -> list[Any]:
    """What the first operator worked on, and where it was called."""
    made = []
    for title, lines in (
        ("Inputs", verdict_words.inputs(first)),
        ("Python stack", verdict_words.stack(first)),
    ):
        if lines:
            made.append(
                html.Details(
                    [html.Summary(title), html.Pre("\n".join(lines))], open=True, className="pasted"
                )
            )
    return made


def _norm(value: Any) -> str:
    return (
        "no gradient"
        if value is None
        else units.number(value, 9)
        if isinstance(value, float)
        else str(value)
    )


def _state(row: dict[str, Any], kind: str) -> str:
    """In words; of an op that both runs have, only some calls are in one of them."""
    if kind == "op" and row["base"] == row["base"] and row["run"] == row["run"]:
        return "more often" if row["difference"] > 0 else "less often"
    return str(row["state"]).replace("_", " ").replace("in base", "in baseline")


def _row_address(kind: str, row: dict[str, Any], context: Context) -> str | None:
    """Where the run has a row: a tensor's operator, an op's calls, the step of a gradient."""
    run, rank, step = context.run, int(row["rank"]), int(row["step"])
    if kind == "tensor" and row["time_ns"] == row["time_ns"]:
        start = int(row["time_ns"])
        at = (thread_lane(rank, str(row["thread_id"])), start)
        return context.address(timeline_address(start, start + AROUND_NS, run.duration_ns, at))
    if kind == "gradient":
        return step_link(run, rank, step)
    named = [t.thread for t in run.threads_of(rank) if t.name == row["thread"]]
    return calls_address(str(row["name"]), rank, named[0] if len(named) == 1 else "", step)


def _table(kind: str, rows: Any, context: Context) -> Component:
    if rows.empty:
        words = "All norms are the same." if kind == "gradient" else "All ops ran equally often."
        return html.P(words, className="muted")
    number, less = (".0f", "+.0f") if kind == "op" else (".9g", "+.4g")
    made = []
    for row in rows.head(_MAX_ROWS).to_dict("records"):
        one = {k: row[k] for k in ("rank", "thread", "step", "name")}
        if kind == "tensor":
            one |= {k: row[k] for k in ("phase", "module", "position")}
        one["state"] = _state(row, kind)
        one["link"] = _row_address(kind, row, context)
        for side in ("base", "run", "difference"):
            value = row[side]
            known = value == value  # NaN is not itself
            one[side] = float(value) if known else None
            one[f"{side}_text"] = (
                "–" if not known else format(value, less if side == "difference" else number)
            )
        made.append(one)
    name = "parameter" if kind == "gradient" else "op"
    unit = {"gradient": "norm", "op": "calls", "tensor": "mean"}[kind]
    more_columns = [
        grids.column("module", "module", flex=2),
        grids.column("phase", "phase", flex=1, minWidth=100),
        grids.column("position", "tensor", maxWidth=90),
    ]
    columns = [
        grids.column("step", "step", maxWidth=80),
        grids.column("rank", "rank", maxWidth=80),
        grids.column("thread", "thread", flex=1),
        grids.column("name", name, flex=3, minWidth=180),
        *(more_columns if kind == "tensor" else []),
        grids.column("base", f"{unit}, baseline", number=True, text=True, flex=1, minWidth=148),
        grids.column("run", f"{unit}, this run", number=True, text=True, flex=1, minWidth=148),
        grids.column("difference", "difference", number=True, text=True, flex=1, minWidth=120),
        grids.column("state", "state", flex=1, minWidth=128),
    ]
    grid = grids.grid(f"diff-{kind}", columns, made, label=name, leads="link", paged=True)
    if len(rows) <= _MAX_ROWS:
        return grid
    shown = f"The first {units.count(_MAX_ROWS)} of {units.count(len(rows))}"
    more: list[Any] = [
        f"{shown}. All rows in Python: ",
        html.Code("lw.diff(base, run)"),
    ]
    return html.Div([grid, html.P(more, className="muted")])


@lru_cache(maxsize=6)
def _compared(base: Run, run: Run, mode: Mode, noise: Run | None) -> Comparison:
    return compare(base, run, mode, noise if mode == "tolerance" else None)
