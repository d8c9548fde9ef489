"""The flame graph of a selection on a page: how it is folded, the picture, its widest frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, Patch, State, ctx, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.flame import charts
from lanescope.webapp.plugins.flame.baseline import flame
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Window
from lanescope.webapp.timeline.flame_graph.flame import ThreadWindow, missing_frames, parts_of
from lanescope.webapp.timeline.flame_graph.frame_tree import ROOT
from lanescope.webapp.timeline.flame_graph.lane_walk import By
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_MAX_OPS = 2_000_000
"""Operators of a selection that are folded for a page."""

_MAX_ROWS = 200
"""Widest frames that the table lists."""

MAX_THREADS = 300
"""Threads up to which each of them can be chosen."""

_BY: dict[By, str] = {"nesting": "nesting", "stack": "Python stack", "module": "module"}
_BESIDE = {
    "run": "difference, widths of the run",
    "baseline": "difference, widths of the baseline",
    "alone": "the run alone",
}
_ALL = "all"

Selected = dict[str, Any] | int | None
"""Value that a selection is made of."""


class Section:
    """The flame graph within a page. `name` begins the ids of its components.

    `width_px` is about how wide the picture is: names are cut to it.
    """

    def __init__(self, name: str, width_px: int) -> None:
        self._width_px = width_px
        self.by = f"{name}-by"
        self.lanes = f"{name}-lanes"
        self.beside = f"{name}-beside"
        self.note = f"{name}-note"
        self.graph = f"{name}-graph"
        self.table = f"{name}-table"

    def layout(self, context: Context) -> Component:
        """Returns the controls, and the places of the picture and its table."""
        beside = context.baseline is not None
        shown = _BESIDE if beside else {"alone": _BESIDE["alone"]}
        controls = widgets.controls(
            widgets.choice("frames by", self.by, _options(_BY)),
            widgets.choice("of", self.lanes, _lanes(context.run)),
            widgets.controls(
                widgets.choice("show", self.beside, _options(shown)),
                hidden=not beside,
            ),
        )
        grid = grids.grid(
            self.table,
            _columns(context),
            [],
            label="Widest frames",
            height="100%",
            selectable=True,
        )
        return html.Div(
            [
                controls,
                html.Div(id=self.note, className="flame-note"),
                html.Div(
                    [
                        html.Div(
                            widgets.graph(self.graph, height=200, what="the flame graph"),
                            className="flame-graph",
                            role="region",
                            tabIndex=0,  # it scrolls
                            **widgets.attributes(aria_label="Flame graph"),
                        ),
                        html.Div(grid, className="flame-table"),
                    ],
                    className="flame-split",
                ),
            ],
            className="flame",
        )

    def register(
        self,
        app: Dash,
        context: Context,
        selection: Input,
        window_of: Callable[[Any], Window],
    ) -> None:
        """Has the picture follow `selection`, of whose value `window_of` makes [t0, t1) ns.

        `window_of` raises NotApplicable where nothing is selected.
        """
        choices = [Input(one, "value") for one in (self.by, self.lanes, self.beside)]

        @app.callback(
            Output(self.graph, "figure"),
            Output(self.graph, "style"),
            Output(self.table, "columnDefs"),
            Output(self.table, "rowData"),
            Output(self.note, "children"),
            selection,
            *choices,
            Input(frame_ids.THEME, "data"),
        )
        def show(selected: Selected, by: str, lanes: str, beside: str, theme: Theme | None) -> Any:
            try:
                shown = _Shown(context, window_of(selected), by, lanes, beside)
            except NotApplicable as reason:
                note = html.P(str(reason), className="hint")
                return empty_figure(""), {"height": "0"}, no_update, [], note
            picture = shown.picture(theme or "light", self._width_px)
            heads, rows = grids.with_units(_columns(context), shown.rows())
            return picture, shown.style(ROOT), heads, rows, shown.note(theme or "light")

        @app.callback(
            Output(self.graph, "figure", allow_duplicate=True),
            Output(self.graph, "style", allow_duplicate=True),
            Input(self.graph, "clickData"),
            Input(self.table, "selectedRows"),
            State(selection.component_id, selection.component_property),
            *(State(one.component_id, one.component_property) for one in choices),
            prevent_initial_call=True,
        )
        def widen(
            click: dict[str, Any] | None,
            rows: list[dict[str, Any]] | None,
            selected: Selected,
            by: str,
            lanes: str,
            beside: str,
        ) -> Any:
            if ctx.triggered_id == self.graph:
                node = _clicked(click)
            else:
                node = rows[0].get("node") if rows else None
            if not isinstance(node, int):
                return no_update, no_update
            shown = _Shown(context, window_of(selected), by, lanes, beside)
            return shown.widened(node, self._width_px), shown.style(node)


def _clicked(click: dict[str, Any] | None) -> int | None:
    """Returns the node to show in full width: the clicked one, or of the widest one its parent."""
    point = (click or {}).get("points", [{}])[0]
    node = point.get("parent" if point.get("id") == point.get("entry") else "id")
    return int(node) if isinstance(node, str) and node.isdecimal() else None


def _options(known: dict[Any, str]) -> list[dict[str, Any]]:
    return [{"label": words, "value": value} for value, words in known.items()]


def _lanes(run: Run) -> list[dict[str, Any]]:
    names = widgets.thread_names(run)
    many = len(run.threads) > MAX_THREADS
    options = [{"label": "all threads", "value": _ALL}]
    for rank in run.ranks:
        if len(run.ranks) > 1:
            options.append({"label": f"rank {rank}", "value": f"{rank}"})
        options += [
            {"label": f"rank {rank} · {names[one.rank, one.thread]}", "value": one.key}
            for one in run.threads
            if one.rank == rank and not many
        ]
    return options


def _parts(run: Run, window: Window, lanes: str) -> tuple[ThreadWindow, ...]:
    """Returns the chosen threads in a window. Raises NotApplicable where they do too much."""
    if run.rows_about("op", window) > _MAX_OPS:
        raise NotApplicable(
            f"This selection holds more than {units.count(_MAX_OPS)} operators: "
            "choose a shorter one"
        )
    parts = parts_of(run, window)
    return tuple(one for one in parts if lanes in (_ALL, str(one[0].rank), one[0].key))


def _columns(context: Context) -> list[dict[str, Any]]:
    """The columns of the table of frames."""
    columns = [
        grids.column("frame", "frame", minWidth=110, flex=2),
        grids.column("total", "total", base="ns", together="times"),
    ]
    if context.baseline is not None:
        change = grids.column("change", "change", number=True, text=True, minWidth=70)
        return [
            *columns,
            grids.column("baseline", "baseline", base="ns", together="times"),
            change,
        ]
    share = grids.column("share", "share", number=True, text=True, minWidth=70)
    return [*columns, grids.column("self", "self", base="ns", together="times"), share]


class _Shown:
    """What is chosen, folded. Raises NotApplicable where there is nothing to see."""

    def __init__(self, context: Context, window: Window, by: str, lanes: str, beside: str) -> None:
        run = context.run
        self._beside = beside != "alone" and context.baseline is not None
        self._column = "base_total_ns" if self._beside and beside == "baseline" else "total_ns"
        self._parts = _parts(run, window, lanes)
        folded: By = next((one for one in _BY if one == by), "nesting")
        found = flame(run, self._parts, folded, context.baseline if self._beside else None)
        self._table = found.frames()
        if not self._table[self._column].iloc[0]:
            whose = (
                "In the baseline, no operator" if self._column == "base_total_ns" else "No operator"
            )
            raise NotApplicable(f"{whose} ran here.")
        if why := missing_frames(run, folded, self._table["frame"]):
            raise NotApplicable(why)

    def picture(self, theme: Theme, width_px: int) -> go.Figure:
        """Returns the figure, with the whole in full width."""
        figure = charts.icicle(self._table, self._column, theme, beside=self._beside)
        figure.data[0].text = charts.names(self._table, self._column, ROOT, width_px)
        return figure

    def widened(self, node: int, width_px: int) -> Patch:
        """Returns what changes in the figure where a node is in full width."""
        patch = Patch()
        patch["data"][0]["level"] = str(node)
        patch["layout"]["margin"]["t"] = charts.room(self._table, node)[1]
        patch["data"][0]["text"] = charts.names(self._table, self._column, node, width_px)
        return patch

    def style(self, node: int) -> dict[str, str]:
        """Returns the size of the figure with a node in full width."""
        return {"height": f"{charts.room(self._table, node)[0]}px"}

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of the table: the widest frames."""
        whole = int(self._table[self._column].iloc[0])
        widest = self._table.iloc[1:].sort_values(self._column, ascending=False, kind="stable")
        rows = []
        for row in widest.head(_MAX_ROWS).itertuples():
            share = getattr(row, self._column) / whole
            made: dict[str, Any] = {
                "node": row.node,
                "frame": charts.title(row.frame, row.gathered),
                "share": share,
                "share_text": units.share_cell(share),
                "change": row.total_ns - row.base_total_ns,
                "change_text": charts.change(row.total_ns, row.base_total_ns),
            }
            times = {"total": row.total_ns, "self": row.self_ns, "baseline": row.base_total_ns}
            rows.append(made | times)
        return rows

    def note(self, theme: Theme) -> list[Component]:
        """Returns the sum, how many frames are gathered, and the meaning of the colours."""
        ranks = {one.rank for one, _ in self._parts}
        total = widgets.duration_text(int(self._table[self._column].iloc[0]))
        words = f"{total} on {units.counted(len(self._parts), 'thread')}"
        words += f" of {units.counted(len(ranks), 'rank')}" if len(ranks) > 1 else ""
        short = int(self._table["gathered"].sum())
        if short:
            words += f" · {units.counted(short, 'short frame')} gathered as “other”"
        found: list[Component] = [html.Span(words, className="muted")]
        if not self._beside:
            legend = charts.legend(self._table).items()
            found += [html.Span([widgets.swatch(token), one]) for token, one in legend]
            return found
        stops = ", ".join(colour for _, colour in charts.diverging(theme))
        scale = html.I(
            className="scale", style={"background": f"linear-gradient(to right, {stops})"}
        )
        ends = ("half the time or less ", " twice the time or more, of the baseline")
        return [*found, html.Span([ends[0], scale, ends[1]], className="flame-scale")]
