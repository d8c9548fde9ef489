"""Which threads are in a phase at the same time, and where."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.plugins.threads import charts, ids
from lanescope.webapp.plugins.threads.forward_backward_gap import forward_to_backward
from lanescope.webapp.plugins.threads.overlap import (
    overlap,
    overlap_over_time,
    overlap_rate,
    overlap_regions,
)
from lanescope.webapp.plugins.threads.overlap_findings import shared_gradients
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.matrices import Compared, compared

_PHASES = ("backward", "forward", "optimizer", "data", "evaluation", "user")
_REGIONS = 20
_CELL_PX, _AROUND_PX = (64, 28), (320, 90)  # width and height in the chart of rates, and around it


def layout(context: Context) -> Component:
    """Returns the phase to choose; the rest follows it."""
    ranks = list(context.run.ranks)
    return widgets.page(
        "Threads",
        "Threads of one rank in the same phase at the same time. Two backward passes at once may "
        "write the same gradients. The rate of a pair is the time that both are in the phase, as a "
        "share of the shorter one's time in it.",
        widgets.controls(widgets.choice("phase", ids.OVERLAP_PHASE, list(_PHASES), "backward")),
        html.Div(states.loading("Measuring the overlap of threads"), id=ids.OVERLAP_BODY),
        html.Div(
            [
                html.Div(id=ids.OVERLAP_REGIONS),
                html.Div(
                    [
                        html.H2("Rates"),
                        widgets.controls(
                            widgets.choice("rank", ids.OVERLAP_RANK, widgets.rank_options(ranks)),
                            hidden=len(ranks) < 2,
                        ),
                        widgets.graph(ids.OVERLAP_MATRIX, height=240, what="the rate of each pair"),
                        html.P(
                            "Percent of each pair. Click a rate to see the longest region of its "
                            "two threads on the timeline.",
                            className="muted",
                        ),
                    ],
                    id=ids.OVERLAP_RATES,
                ),
            ],
            className="split list-beside",
        ),
        html.Div(
            [
                html.H2("Over time"),
                widgets.graph(ids.OVERLAP_CHART, height=260, what="where threads overlap"),
                html.P("Click a stretch to see it on the timeline.", className="muted"),
                widgets.downloads("overlap"),
            ],
            id=ids.OVERLAP_TIMES,
        ),
        states.body_place("Measuring the time from forward to backward"),
    )


def body(context: Context) -> list[Component]:
    """Returns the time from forward to backward, of all threads."""
    return _windows(context.run)


def register(app: Dash, context: Context) -> None:
    """Fills tables and chart for the phase; a click in the chart leads to its place."""
    grids.answer_rows(app, ids.OVERLAP_PAIRS, ids.WINDOWS_TABLE)
    _register_follow(app, context)

    @app.callback(
        Output(ids.OVERLAP_BODY, "children"),
        Output(ids.OVERLAP_REGIONS, "children"),
        Input(ids.OVERLAP_PHASE, "value"),
    )
    def show(phase: str) -> tuple[list[Any], list[Any]]:
        limit = context.settings.limit("thread_overlap_rate")
        return pairs(context.run, phase, limit), _regions(context.run, phase)

    @app.callback(
        Output(ids.OVERLAP_MATRIX, "figure"),
        Output(ids.OVERLAP_MATRIX, "style"),
        Output(ids.OVERLAP_RATES, "hidden"),
        Output(ids.OVERLAP_TIMES, "hidden"),
        Input(ids.OVERLAP_PHASE, "value"),
        Input(ids.OVERLAP_RANK, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw_rates(phase: str, rank: int, theme: Theme | None) -> tuple[Any, Any, bool, bool]:
        table = overlap(context.run, phase)
        # A rank may have one thread in the phase: then no pair, not the one before's.
        found = next(compared(context.run, table[table["rank"] == rank]), None)
        figure = _rates(found, _links(context.run, phase), theme or "light")
        count = 0 if found is None else len(found.threads)
        width, height = (a + c * count for a, c in zip(_AROUND_PX, _CELL_PX, strict=True))
        return figure, {"height": f"{height}px", "maxWidth": f"{width}px"}, *[table.empty] * 2

    @app.callback(
        Output(ids.OVERLAP_CHART, "figure"),
        Input(ids.OVERLAP_PHASE, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def draw(phase: str, theme: Theme | None) -> go.Figure:
        limit = context.settings.limit("thread_overlap_rate") if phase == "backward" else None
        return charts.overlap_rates(overlap_over_time(context.run, phase), limit, theme or "light")

    @app.callback(Output(ids.WINDOWS_CHART, "figure"), Input(frame_ids.THEME, "data"))
    def draw_windows(theme: Theme | None) -> go.Figure:
        return charts.forward_windows(_named_windows(context.run), theme or "light")


def _register_follow(app: Dash, context: Context) -> None:
    """A click on a point leads to its place."""

    def window(point: dict[str, Any], _: str) -> str:
        low, high = point["customdata"]
        return timeline_address(low, high, context.run.duration_ns)

    def overlaps(point: dict[str, Any], phase: str) -> str:
        return f"{window(point, phase)}&of={phase}&overlaps=1"

    def pair(point: dict[str, Any], _: str) -> str | None:
        return point.get("customdata")

    widgets.open_on_click(app, ids.OVERLAP_CHART, overlaps, State(ids.OVERLAP_PHASE, "value"))
    widgets.open_on_click(app, ids.WINDOWS_CHART, window)
    widgets.open_on_click(app, ids.OVERLAP_MATRIX, pair)


def pairs(run: Run, phase: str, limit: float) -> list[Any]:
    """Returns the verdict on a phase, and the pairs of threads in it."""
    rate = overlap_rate(run, phase)
    if rate is None:
        return [
            states.empty(
                f"No thread was ever in the {phase} phase.",
                "LaneScope records the phases of a training loop by itself. To mark one in your "
                "program, write ",
                html.Code(f'with ls.phase("{"warm-up" if phase == "user" else phase}"):'),
                ".",
            )
        ]
    table = overlap(run, phase)
    if table.empty:
        words = f"On every rank a single thread does the {phase} phase, so nothing can overlap."
        return [states.empty(f"No pair of threads in the {phase} phase.", words)]
    known = widgets.thread_names(run)
    links = _links(run, phase)
    rows = [
        {
            "link": links.get((row.rank, row.a, row.b)) or links.get((row.rank, row.b, row.a)),
            "rank": row.rank,
            "a": known[row.rank, row.a],
            "b": known[row.rank, row.b],
            **{name: getattr(row, name) for name in ("a_ns", "b_ns", "overlap_ns", "rate")},
            "rate_text": units.share_cell(row.rate),
        }
        for row in table[table["overlap_ns"] > 0].itertuples()
    ]
    never = len(table) - len(rows)
    others = f"{units.counted(never, 'other pair')} never overlap{'s' if never == 1 else ''}."
    columns = [
        grids.column("rank", "rank", maxWidth=80),
        grids.column("a", "first thread", flex=2),
        grids.column("b", "second thread", flex=2),
        grids.column("a_ns", "first", base="ns", together="times"),
        grids.column("b_ns", "second", base="ns", together="times"),
        grids.column("overlap_ns", "both", base="ns", together="times"),
        grids.column("rate", "rate", number=True, text=True, flex=1),
    ]
    return [
        _verdict(run, rate, phase, limit),
        html.H2("Pairs of threads"),
        grids.grid(
            ids.OVERLAP_PAIRS,
            columns,
            rows,
            label="Pairs",
            leads="link",
            empty="No pair overlaps.",
            paged=True,
        ),
        html.P(others, className="muted", hidden=not (never and rows)),
    ]


def _rates(of: Compared | None, links: dict[tuple[int, str, str], str], theme: Theme) -> go.Figure:
    """The chart of a rank's pairs; None: it has no pair."""
    if of is None:
        return empty_figure("One thread of this rank at most is in the phase: there is no pair.")

    def to(a: str, b: str) -> str:
        return links.get((of.rank, a, b), links.get((of.rank, b, a), ""))

    rates = [[None if a == b else of.rate(a, b) for b in of.threads] for a in of.threads]
    there = [[to(a, b) for b in of.threads] for a in of.threads]
    return charts.pair_rates(of.names, rates, there, theme)


def _links(run: Run, phase: str) -> dict[tuple[int, str, str], str]:
    """By rank and two threads, the address of the longest region that both are in."""
    links: dict[tuple[int, str, str], str] = {}
    for one in overlap_regions(run, phase):
        address = timeline_address(one.start_ns, one.end_ns, run.duration_ns)
        for a, b in combinations(one.threads, 2):
            links.setdefault((one.rank, a, b), f"{address}&of={phase}&overlaps=1")
    return links


def _verdict(run: Run, rate: float, phase: str, limit: float) -> Component:
    text = (
        f"two or more threads of a rank are in the {phase} phase at the same time for "
        f"{units.share(rate)} of the time that any is in it."
    )
    if phase != "backward":
        return widgets.note(units.sentence(text))
    if rate < limit:
        return widgets.note(
            [html.B("within the limit"), f" of {units.share(limit)} · {text}"], "good"
        )
    over = [html.B("over the limit"), f" of {units.share(limit)}"]  # by how much the card says
    if shared_gradients(run) == 0:
        return widgets.note([*over, ", but the threads share no gradient"])
    return widgets.note(over, "bad")


def _regions(run: Run, phase: str) -> list[Component]:
    """The longest regions of a phase; nothing where it has no pair of threads."""
    if overlap(run, phase).empty:
        return []
    head = html.H2("Longest regions")
    regions = overlap_regions(run, phase)
    if not regions:
        words = "No two threads were in it at the same instant."
        return [head, html.P(words, className="muted")]
    known, shown = widgets.thread_names(run), regions[:_REGIONS]
    at, starts = grids.in_unit("at", [one.start_ns for one in shown])
    length, lengths = grids.in_unit("length", [one.end_ns - one.start_ns for one in shown])
    rows = [
        (
            widgets.timeline_link(
                start,
                one.start_ns,
                one.end_ns,
                run.duration_ns,
                of=phase,
                overlaps="1",
            ),
            lasted,
            str(one.rank),
            ", ".join(known[one.rank, thread] for thread in one.threads),
        )
        for one, start, lasted in zip(shown, starts, lengths, strict=True)
    ]
    table = html.Div(
        widgets.plain_table((at, length, "rank", "threads"), rows, (0, 1, 2)), className="tall-list"
    )
    if len(regions) <= _REGIONS:
        return [head, table]
    more = (
        f"{units.count(len(regions) - _REGIONS)} shorter ones are on the timeline: press O there."
    )
    return [head, table, html.P(more, className="muted")]


def _named_windows(run: Run) -> pd.DataFrame:
    known, table = widgets.thread_names(run), forward_to_backward(run)
    names = [known[key] for key in zip(table["rank"], table["thread"], strict=True)]
    return table.assign(name=pd.Series(names, table.index, dtype=object))


def _windows(run: Run) -> list[Component]:
    """From the end of forward to the start of backward: a chart by step, and a row per thread."""
    head = html.H2("From forward to backward")
    table = _named_windows(run)
    if table.empty:
        words = "No thread ran a forward phase and then a backward one."
        chart = html.Div(
            widgets.graph(ids.WINDOWS_CHART, what="the time from forward to backward"), hidden=True
        )
        return [head, html.P(words, className="muted"), chart]
    place = {(one.rank, one.thread): at for at, one in enumerate(run.threads)}
    groups = sorted(table.groupby(["rank", "thread"]), key=lambda group: place[group[0]])
    threads = [own for _, own in groups]
    rows = []
    for own in threads:
        longest = own.loc[own["window_ns"].idxmax()]
        bounds = int(longest["forward_end_ns"]), int(longest["backward_start_ns"])
        rows.append(
            {
                "link": timeline_address(*bounds, run.duration_ns),
                "rank": int(longest["rank"]),
                "thread": str(longest["name"]),
                "backwards": len(own),
                "backwards_text": units.count(len(own)),
                "median": float(own["window_ns"].median()),
                "longest": int(longest["window_ns"]),
            }
        )
    columns = [
        grids.column("rank", "rank", number=True, maxWidth=80),
        grids.column("thread", "thread", flex=2, tooltipField="thread"),
        grids.column("backwards", "backwards", number=True, text=True, minWidth=110),
        grids.column("median", "median", base="ns"),
        grids.column("longest", "longest", base="ns"),
    ]
    return [
        head,
        html.P(
            "The time between the end of a thread's forward phase and the start of its backward: "
            "the loss, and all that another thread may still do to the graph. Click a point "
            "to see it on the timeline.",
            className="muted",
        ),
        widgets.graph(ids.WINDOWS_CHART, height=240, what="the time from forward to backward"),
        grids.grid(ids.WINDOWS_TABLE, columns, rows, label="Threads", leads="link", paged=True),
    ]
