"""The timeline's place in the page, and the dock's answers for the window or the range.

The lanes themselves are drawn by assets/timeline/*.js from binary tiles; no callback takes part.
"""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, ctx, dcc, html, no_update, set_props
from dash.development.base_component import Component

from lanescope.webapp.analysis.thread_waits import WAITS_FOR
from lanescope.webapp.plugins.collectives import skew
from lanescope.webapp.plugins.flame.page_section import Section
from lanescope.webapp.plugins.threads import waiting
from lanescope.webapp.plugins.threads.overlap import (
    Region,
    overlap,
    overlap_rate,
    overlap_regions,
    take_phases,
)
from lanescope.webapp.plugins.threads.overlap_findings import shared_gradients
from lanescope.webapp.plugins.timeline_page import ids
from lanescope.webapp.plugins.timeline_page.op_table import MAX_OPS, op_table, summable
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.index import Index
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import token_of
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.matrices import matrices

_TIMES = dict.fromkeys(("total", "self"), "sums") | dict.fromkeys(("mean", "p50", "p99", "max"), "")
USUAL = "backward"
"""The phase whose overlap is looked for unless another one is chosen."""

_WAITING = 10
"""Threads, and ranks, that the dock lists with their waits, the longest."""

_REGIONS = 100
"""Longest regions that the dock lists."""


_FLAME = Section("flame", width_px=440)


def layout(context: Context) -> Component:
    """Canvas and dock. Empty places are filled by the browser."""
    return html.Div(
        [
            html.Div(id=ids.HOST, className="timeline-host"),
            *([] if context.baseline is None else [_legend(context.baseline)]),
            html.Div(
                [
                    html.Div(id=ids.DOCK_BAR, className="dock-bar"),
                    html.Section(id=ids.SLICE, **widgets.attributes(aria_label="Selected slice")),
                    html.Section(
                        [
                            html.Div(
                                [html.Div(id=ids.TABS), html.H2("Ops", id=ids.OPS_TITLE)],
                                className="tab-head",
                            ),
                            html.Div(
                                states.loading("Adding up the operators"),
                                id=ids.OPS_PANEL,
                                className="op-table",
                            ),
                            html.Div(id=ids.SLICES_PANEL, className="tab-body", hidden=True),
                            html.Div(id=ids.FLAME_PANEL, className="tab-body", hidden=True),
                            html.Div(id=ids.NOTES_PANEL, className="tab-body", hidden=True),
                        ],
                        className="op-panel",
                        **widgets.attributes(aria_label="Ops of the window or the selected range"),
                    ),
                    html.Section(
                        [
                            html.Div(id=ids.OVERLAP_OF),
                            html.Div(
                                states.loading("Measuring overlap and waiting"),
                                id=ids.DOCK_OVERLAP,
                            ),
                        ],
                        className="overlap-panel",
                        **widgets.attributes(
                            aria_label="Overlap of the window or the selected range"
                        ),
                    ),
                ],
                id=ids.DOCK,
                className="dock",
            ),
            dcc.Store(id=ids.VIEW),
            dcc.Store(id=ids.ANSWERED),
            dcc.Store(id=ids.FLAME_OPEN),
        ],
        id=frame_ids.TIMELINE,
        className="timeline",
    )


_LEAST_WIDTHS = {"total": 66, "mean": 73, "max": 65}
"""Pixels that the titles of columns of times need; what they leave is for the names."""


def _op_columns() -> list[dict[str, Any]]:
    return [
        grids.column(
            "op", "op", minWidth=122, flex=3, cellClassRules=_swatches(), tooltipField="op"
        ),
        grids.column("count", "count", number=True, text=True, minWidth=62),
        *(
            grids.column(name, name, base="ns", together=of, minWidth=_LEAST_WIDTHS.get(name, 62))
            for name, of in _TIMES.items()
        ),
        grids.column("share", "share", number=True, text=True, minWidth=62),
    ]


def register(app: Dash, context: Context) -> None:
    """Fills the dock for the window, or the range where one is selected."""
    connect: Any = app.clientside_callback  # Dash leaves it untyped
    connect(
        ClientsideFunction("lanescope", "answered"),
        Output(ids.ANSWERED, "clear_data"),
        Input(ids.ANSWERED, "data"),
    )

    @app.callback(
        Output(ids.FLAME_PANEL, "children"),
        Input(ids.FLAME_OPEN, "data"),
        prevent_initial_call=True,
    )
    def open_flame(view: dict[str, Any]) -> list[Component]:
        return [dcc.Store(id=ids.FLAME_VIEW, data=view), _FLAME.layout(context)]

    _FLAME.register(app, context, Input(ids.FLAME_VIEW, "data"), _window)

    @app.callback(
        Output(ids.OPS_TITLE, "children"),
        Output(ids.OPS_PANEL, "children"),
        Input(ids.VIEW, "data"),
        prevent_initial_call=True,
        on_error=_without_ops,
    )
    def show_ops(view: dict[str, Any]) -> tuple[Any, Any]:
        window = _window(view)
        title = [
            f"{_what(view)} ",
            html.Span(widgets.duration_text(window[1] - window[0]), className="muted"),
        ]
        assert context.timeline is not None  # that of an app has it
        index = context.timeline.index
        rows: list[dict[str, Any]] = []
        if summable(index, window):
            rows = op_rows(index, window)
        else:
            held = f" · zoom in: a table sums up to {units.count(MAX_OPS)} ops"
            title.append(html.Span(held, className="muted"))
        return title, _ops(rows, first=view["first"])

    @app.callback(
        Output(ids.DOCK_OVERLAP, "children"),
        Output(ids.ANSWERED, "data"),
        Input(ids.VIEW, "data"),
        Input(ids.OPS_TITLE, "children"),  # after the ops, which come at once in any run
        prevent_initial_call=True,
        on_error=_unanswered,
    )
    def show_overlap(view: dict[str, Any], _: Any) -> tuple[Any, int]:
        limit = context.settings.limit("thread_overlap_rate")
        where, of = _what(view).lower(), view.get("of") or USUAL
        assert context.timeline is not None  # that of an app has it
        take_phases(context.run, context.timeline.index, of)
        return _overlap(context.run, _window(view), where, of, limit), view["number"]


def _what(view: dict[str, Any]) -> str:
    return "Range" if view["range"] else "Window"


def _ops(rows: list[dict[str, Any]], *, first: bool) -> Any:
    """The table of ops for the first answer, which others fill again: pages without the dock need
    none, and making it takes a third of the time that a page takes to come."""
    columns = _op_columns()
    if first:
        return grids.grid(ids.OPS, columns, rows, label="Ops", height="100%", leads="op")
    heads, shown = grids.with_units(columns, rows)
    set_props(ids.OPS, {"columnDefs": heads, "rowData": shown})
    return no_update


def _without_ops(error: Exception) -> tuple[str, Component]:
    """What is in place of the table after an exception; the next answer brings it back."""
    return "Ops", states.failed(error, "the dock")


def _unanswered(error: Exception) -> tuple[Component, int]:
    """What the dock shows after an exception, with the number of the question: the timeline waits
    for it."""
    return states.failed(error, "the dock"), ctx.inputs[f"{ids.VIEW}.data"]["number"]


def _window(view: dict[str, Any]) -> tuple[int, int]:
    return int(view["t0"]), int(view["t1"])


def op_rows(index: Index, window: tuple[int, int]) -> list[dict[str, Any]]:
    """Returns the rows of the op table of a window."""
    table = op_table(index, window)
    whole = max(int(table["self_ns"].sum()), 1)
    rows = []
    for row in table.to_dict("records"):
        share = row["self_ns"] / whole
        made = {"op": row["op"], "kind": token_of(row["kind"]), "share": share}
        made |= {"share_text": units.share_cell(share), "count": row["count"]}
        made["count_text"] = units.count(row["count"])
        rows.append(made | {name: row[f"{name}_ns"] for name in _TIMES})
    return rows


_BESIDE = {
    "identical": "identical",
    "within": "within tolerance",
    "different": "different",
    "added": "added",
    "removed": "removed",
    "slower": "slower",
    "faster": "faster",
}


def _legend(baseline: Run) -> Component:
    """What the colours of ops mean beside a baseline, and how to go from one to the next."""
    shown = [html.Span([widgets.swatch(token), word]) for token, word in _BESIDE.items()]
    keys = html.Span(
        [html.Kbd("N"), " ", html.Kbd("Shift + N"), " next, previous difference"],
        className="muted",
    )
    return html.Div(
        [html.Span(["Ops beside the baseline ", html.B(baseline.title)]), *shown, keys],
        className="beside-legend",
        role="note",
    )


def _swatches() -> dict[str, str]:
    kinds = ("forward", "backward", "optimizer", "collective", "data", "other")
    return {f"kind {kind}": f"params.data.kind === '{kind}'" for kind in kinds}


def _overlap(run: Run, window: tuple[int, int], where: str, of: str, limit: float) -> list[Any]:
    """What the dock says of threads that are in a phase, or in ops of some name, at once."""
    try:
        table = overlap(run, of, window)
    except RunError as error:
        return [_head("Overlap", None, None), html.P(str(error), className="hint")]
    rate = overlap_rate(run, of, window)
    over = of == USUAL and rate is not None and rate >= limit
    harmless = over and shared_gradients(run) == 0
    head = _head(f"In {where}", rate, limit if of == USUAL else None, harmless)
    if table.empty:
        what = of if of.startswith("/") else f"the {of} phase"
        words = f"No {'thread is' if rate is None else 'rank has two threads'} in {what} here."
        return [head, html.P(words, className="hint"), *_all_waiting(run, window)]
    regions = overlap_regions(run, of, window)
    foot: list[Any] = [f"{units.count(len(regions))} region{'' if len(regions) == 1 else 's'}"]
    if regions:
        foot += [" · ", html.Kbd("O"), " next"]
    return [
        head,
        html.P(foot, className="muted"),
        html.Div(
            [html.Div(matrices(run, table)), _regions(run, regions)],
            className="overlap-split",
        ),
        *_all_waiting(run, window),
    ]


def _head(title: str, rate: float | None, limit: float | None, harmless: bool = False) -> Component:
    head: list[Any] = [html.H2(title)]
    if rate is not None and limit is not None:
        over = rate >= limit
        text = f"{units.share(rate)} {'≥' if over else '<'} {units.share(limit)}"
        colour = "" if harmless else "bad" if over else "good"
        head.append(html.B(text, className=colour))
        if harmless:
            head.append(html.Span(" harmless here: they share no gradient", className="muted"))
    elif rate is not None:
        head.append(html.B(units.share(rate)))
    return html.Div(head, className="split-head")


def _regions(run: Run, regions: list[Region]) -> Component:
    """The longest ones; a press leads there (see overlaps.js)."""
    known = widgets.thread_names(run)
    rows = [
        html.Li(
            html.Button(
                [
                    html.B(widgets.duration_text(one.end_ns - one.start_ns)),
                    f" at {widgets.duration_text(one.start_ns)} · rank {one.rank}",
                ],
                className="link",
                title=", ".join(known[one.rank, thread] for thread in one.threads),
                **widgets.attributes(data_region=f"{one.start_ns}-{one.end_ns}-{one.rank}"),
            )
        )
        for one in regions[:_REGIONS]
    ]
    more = len(regions) - len(rows)
    if more > 0:
        rows.append(html.Li(f"and {units.count(more)} shorter ones", className="muted"))
    return html.Ol(rows, className="regions", **widgets.attributes(aria_label="Longest regions"))


def _all_waiting(run: Run, window: tuple[int, int]) -> list[Any]:
    return [*_waiting(run, window), *_threads_waiting(run, window)]


def _threads_waiting(run: Run, window: tuple[int, int]) -> list[Any]:
    """How long threads waited for other threads: in locks, queues, events, futures, joins."""
    table = waiting.waiting_threads(run, window)
    if table.empty:
        return []
    known = widgets.thread_names(run)
    rows = [
        (
            html.Div(
                [
                    f"rank {row.rank} · {known[row.rank, row.thread]}",
                    html.Div(
                        f"for {WAITS_FOR[row.kind]}" + (", never ended" if row.open else ""),
                        className="muted",
                    ),
                ]
            ),
            widgets.duration_text(row.waiting_ns),
            units.share_cell(row.share),
        )
        for row in table.head(_WAITING).itertuples()
    ]
    return [
        html.H2("Threads waiting for threads", className="below"),
        widgets.plain_table(("thread", "waiting", "share"), rows, (1, 2)),
        *_more(len(table) - len(rows)),
    ]


def _waiting(run: Run, window: tuple[int, int]) -> list[Any]:
    """How long each rank waited for others."""
    table = skew.waiting_ranks(run, window)
    if table.empty:
        return []
    longest = table.nlargest(_WAITING, "waiting_ns").sort_values("rank")
    rows = [
        (f"rank {row.rank}", widgets.duration_text(row.waiting_ns), units.share_cell(row.share))
        for row in longest.itertuples()
    ]
    heads = ("rank", "waiting", "share")
    head = html.H2("Waiting in collectives", className="below")
    if len(run.ranks) > 1 and not run.clock_calibrated:
        words = "Not known: the clocks of the ranks were not compared."
        return [head, html.P(words, className="muted")]
    return [head, widgets.plain_table(heads, rows, (1, 2)), *_more(len(table) - len(rows))]


def _more(count: int) -> list[Component]:
    words = f"and {units.count(count)} shorter ones"
    return [html.P(words, className="muted")] if count else []
