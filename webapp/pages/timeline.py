"""The timeline's place in the page, and the dock's answers for the window or the range.

The lanes themselves are drawn by assets/timeline/*.js from binary tiles; no callback takes part.
"""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from lanescope.webapp import units
from lanescope.webapp.analysis.checks import LIMITS
from lanescope.webapp.analysis.overlap import overlap, overlap_rate, overlap_regions
from lanescope.webapp.analysis.ranges import MOST_OPS, op_table, summable
from lanescope.webapp.pages import ids, parts
from lanescope.webapp.pages.context import Context
from lanescope.webapp.run import Run
from lanescope.webapp.theme import token_of


def layout(_: Context) -> Component:
    """Canvas and dock. Empty places are filled by the browser."""
    columns = [
        parts.column("op", "op", minWidth=150, flex=3, cellClassRules=_swatches()),
        parts.column("count", "count", number=True, text=True),
        parts.column("total", "total", number=True, text=True, minWidth=78),
        parts.column("self", "self", number=True, text=True, minWidth=78),
        parts.column("mean", "mean", number=True, text=True, minWidth=78),
        parts.column("p99", "p99", number=True, text=True, minWidth=78),
        parts.column("max", "max", number=True, text=True, minWidth=78),
        parts.column("share", "share", number=True, text=True, minWidth=78),
    ]
    return html.Div(
        [
            html.Div(id=ids.HOST, className="timeline-host"),
            html.Div(
                [
                    html.Div(id=ids.DOCK_BAR, className="dock-bar"),
                    html.Section(id=ids.SLICE, **parts.attributes(aria_label="Selected slice")),
                    html.Section(
                        [
                            html.H2("Ops", id=ids.OPS_TITLE),
                            html.Div(
                                parts.grid(ids.OPS, columns, [], label="Ops", height="100%"),
                                className="op-table",
                            ),
                        ],
                        className="op-panel",
                        **parts.attributes(aria_label="Ops of the window or the selected range"),
                    ),
                    html.Section(
                        id=ids.DOCK_OVERLAP,
                        className="overlap-panel",
                        **parts.attributes(
                            aria_label="Overlap of the window or the selected range"
                        ),
                    ),
                ],
                id=ids.DOCK,
                className="dock",
            ),
            dcc.Store(id=ids.VIEW),
            dcc.Store(id=ids.ANSWERED),
        ],
        id=ids.TIMELINE,
        className="timeline",
    )


def register(app: Dash, context: Context) -> None:
    """The dock follows the window, or the range where one is selected."""
    connect: Any = app.clientside_callback  # Dash leaves it untyped
    connect(
        ClientsideFunction("lanescope", "answered"),
        Output(ids.ANSWERED, "clear_data"),
        Input(ids.ANSWERED, "data"),
    )

    @app.callback(
        Output(ids.OPS_TITLE, "children"),
        Output(ids.OPS, "rowData"),
        Output(ids.DOCK_OVERLAP, "children"),
        Output(ids.ANSWERED, "data"),
        Input(ids.VIEW, "data"),
        prevent_initial_call=True,
    )
    def show(view: dict[str, Any]) -> tuple[Any, list[dict[str, Any]], Any, int]:
        window = (int(view["t0"]), int(view["t1"]))
        what = "Range" if view["range"] else "Window"
        title = [f"{what} ", html.Span(parts.duration(window[1] - window[0]), className="muted")]
        pairs = _overlap(context.run, window, what.lower())
        if not summable(context.run, window):
            held = f" · zoom in: a table sums up to {units.count(MOST_OPS)} ops"
            return [*title, html.Span(held, className="muted")], [], pairs, view["number"]
        return title, op_rows(context.run, window), pairs, view["number"]


def op_rows(run: Run, window: tuple[int, int]) -> list[dict[str, Any]]:
    """The rows of the op table of a window."""
    table = op_table(run, window)
    whole = max(int(table["self_ns"].sum()), 1)
    rows = []
    for row in table.to_dict("records"):
        share = row["self_ns"] / whole
        made = {"op": row["op"], "kind": token_of(row["kind"]), "share": share}
        made |= {"share_text": units.share(share), "count": row["count"]}
        made["count_text"] = units.count(row["count"])
        for name in ("total", "self", "mean", "p99", "max"):
            made[name] = row[f"{name}_ns"]
            made[f"{name}_text"] = parts.duration(row[f"{name}_ns"])
        rows.append(made)
    return rows


def _swatches() -> dict[str, str]:
    kinds = ("forward", "backward", "optimizer", "collective", "data", "other")
    return {f"kind {kind}": f"params.data.kind === '{kind}'" for kind in kinds}


def _overlap(run: Run, window: tuple[int, int], where: str) -> list[Any]:
    table = overlap(run, "backward", window)
    rate = overlap_rate(run, "backward", window)
    limit = LIMITS["thread_overlap_rate"]
    over = rate is not None and rate >= limit
    head: list[Any] = [html.H2(f"Backward overlap in {where}")]
    if rate is not None:
        word = "≥" if over else "<"
        text = f"{units.share(rate)} {word} {units.share(limit)}"
        head.append(html.B(text, className="bad" if over else "good"))
    if table.empty:
        words = (
            "No thread is in the backward phase here."
            if rate is None
            else "No rank has two threads in the backward phase here."
        )
        return [html.Div(head, className="split-head"), html.P(words, className="hint")]
    regions = overlap_regions(run, "backward", window)
    foot: list[Any] = [f"{units.count(len(regions))} region{'' if len(regions) == 1 else 's'}"]
    if regions:
        longest = parts.duration(regions[0].end_ns - regions[0].start_ns)
        foot += [f" · longest {longest} · ", html.Kbd("O"), " next"]
    return [
        html.Div(head, className="split-head"),
        html.P(foot, className="muted"),
        *parts.matrices(run, table),
    ]
