"""Memory of tensors over time, and what an instant of it consists of, the peak at first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, ctx, dcc, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import if_applicable
from lanescope.webapp.plugins.memory import charts, page_baseline
from lanescope.webapp.plugins.memory.storages import STORAGE_CATEGORIES
from lanescope.webapp.plugins.memory.usage import Usage, devices_of, storages_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.charts import empty_figure
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_RANK = "memory-rank"
_DEVICE = "memory-device"
_BY = "memory-by"
_CHART = "memory-chart"
_ABOUT = "memory-about"
INSTANT = "memory-instant"
_TABLE = "memory-table"

_GROUPS = {"category": "category", "module": "module", "where": "line of the program"}
POINTS = 400
_MAX_GROUPS = 9
_MAX_ROWS = 25
_MIN_SHARE = 0.001
"""Of the bytes at an instant; smaller rows are only counted."""

REST = "all others"
_NO_GROUP = {"module": "outside of modules", "where": "no line recorded"}


def layout(_: Context) -> Component:
    """Returns the head of the page; `body` reads the allocations of all ranks."""
    lead = "What tensors keep in memory, what for, and what the peak consists of."
    return widgets.page("Memory", lead, states.body_place("Reading the allocations"))


def body(context: Context) -> list[Component]:
    """Returns the choice of rank and device, the course of its memory, and what it consists of."""
    run = context.run
    devices = _devices(run)
    if not devices:
        return [
            states.empty(
                "This run has no record of allocations.",
                "Record with ",
                html.Code("--level access"),
                " or higher, or profile with ",
                html.Code("profile_memory=True"),
                " and import the trace.",
            )
        ]
    by = [{"label": title, "value": name} for name, title in _GROUPS.items()]
    return [
        widgets.controls(
            widgets.choice("rank", _RANK, widgets.rank_options(run.ranks)),
            widgets.choice("device", _DEVICE, devices),
            widgets.choice("by", _BY, by),
        ),
        html.P(id=_ABOUT),
        widgets.graph(_CHART, height=380, what="memory over time"),
        html.P("Click the chart to list another instant.", className="muted"),
        html.H2(id=INSTANT),
        html.Div(states.loading("Listing what the peak consists of"), id=_TABLE),
        widgets.downloads("memory", "memory_peak"),
        *([] if context.baseline is None else page_baseline.section()),
    ]


def register(app: Dash, context: Context) -> None:
    """Fills chart and table for the rank, the device and the grouping."""
    run, base = context.run, context.baseline
    if base is not None:
        page_baseline.register(app, base, run, _RANK, _DEVICE)

    @app.callback(
        Output(_CHART, "figure"),
        Output(_ABOUT, "children"),
        Input(_RANK, "value"),
        Input(_DEVICE, "value"),
        Input(_BY, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def show(rank: int, device: str, by: str, theme: Theme | None) -> tuple[go.Figure, Any]:
        usage = _usage(run, rank, device)
        if usage is None:
            return empty_figure(f"rank {rank} has no record of allocations on {device}"), ""
        edges = charts.bin_edges(_shown(run, usage), POINTS)
        instants = usage.peaks(edges)
        groups = _groups(usage, by if by in _GROUPS else "category", instants)
        best = usage.peak
        peak = int(usage.time_ns[best]), int(usage.bytes[best])
        figure = charts.over_time(groups, instants, peak, theme or "light")
        if base is not None:
            before = page_baseline.base_peak(base, run, rank, device)
            charts.add_baseline_peak(figure, before, peak[1])
        return figure, _about(run, usage)

    @app.callback(
        Output(INSTANT, "children"),
        Output(_TABLE, "children"),
        Input(_RANK, "value"),
        Input(_DEVICE, "value"),
        Input(_CHART, "clickData"),
    )
    def explain(rank: int, device: str, click: dict[str, Any] | None) -> tuple[Any, Any]:
        usage = _usage(run, rank, device)
        if usage is None:
            return "", ""
        instant, words = int(usage.time_ns[usage.peak]), "At the peak"
        points = (click or {}).get("points", [])
        if ctx.triggered_id == _CHART and points:
            instant = int(points[0]["customdata"])
            words = f"At {units.number(instant * 1e-9, 6)} s"
        parts = usage.parts(instant)
        step = _step(run, rank, instant)
        link = dcc.Link("Show", href=timeline_address(instant, instant + 1, run.duration_ns))
        about = f" {units.size(int(parts['bytes'].sum()))}{step} · "
        return [words, html.Small([about, link])], _table(parts, rank)


def _devices(run: Run) -> list[str]:
    found: dict[str, None] = {}
    for rank in run.ranks:
        storages = if_applicable(storages_of, run, rank, otherwise=None)
        found |= dict.fromkeys(devices_of(storages) if storages is not None else [])
    return [*found]


def _usage(run: Run, rank: int, device: str) -> Usage | None:
    storages = if_applicable(storages_of, run, rank, otherwise=None)
    if storages is None or device not in devices_of(storages):
        return None
    return Usage.of(storages, device)


def _groups(usage: Usage, by: str, instants: Int64Array) -> dict[str, Int64Array]:
    """Bytes of each group at the instants: categories in their order, else the largest first."""
    labels = getattr(usage.storages, by)
    if by != "category":
        labels = np.where(labels == "", _NO_GROUP[by], labels)
    found = usage.by(labels, instants)
    if by == "category":
        return {name: found[name] for name in STORAGE_CATEGORIES if name in found}
    order = sorted(found, key=lambda name: -int(found[name].max(initial=0)))
    kept = {name: found[name] for name in order[:_MAX_GROUPS]}
    if len(order) > _MAX_GROUPS:
        kept[REST] = np.sum([found[name] for name in order[_MAX_GROUPS:]], axis=0)
    return kept


def _shown(run: Run, usage: Usage) -> tuple[int, int]:
    """From the first step on, or from the peak if that is before."""
    start, end = usage.storages.window
    first = run.steps(usage.storages.rank).start_ns[:1].tolist()
    return max(start, min([*first, int(usage.time_ns[usage.peak])])), end


def _about(run: Run, usage: Usage) -> str:
    """The peak in words, with its bounds where they are apart."""
    best = usage.peak
    instant, size = int(usage.time_ns[best]), int(usage.bytes[best])
    words = f"Peak {units.size(size)}{_step(run, usage.storages.rank, instant)}"
    start, end = usage.storages.window
    most = usage.at_most(start, end)
    if most > size:
        words += (
            f", at most {units.size(most)}: LaneScope does not record when memory is freed, so "
            "each tensor counts until its last use"
        )
    if start > 0:
        words += f". The run is long: shown is what follows {units.duration(start)}"
    return f"{words}."


def _step(run: Run, rank: int, instant: int) -> str:
    steps = run.steps(rank)
    at = int(np.searchsorted(steps.end_ns, instant))
    inside = at < len(steps) and steps.start_ns[at] <= instant
    return f" in step {steps.index[at]}" if inside else ""


def _op(name: str, rank: int) -> Component:
    if not name:
        return html.Span("not recorded", className="muted")
    return widgets.calls_link(name, rank)


def _table(parts: pd.DataFrame, rank: int) -> Component:
    whole = max(int(parts["bytes"].sum()), 1)
    shown = parts[parts["bytes"] >= _MIN_SHARE * whole].head(_MAX_ROWS)
    head, sizes = grids.in_unit("size", shown["bytes"], "B")
    rows = [
        (
            html.Span(
                [
                    widgets.swatch(charts.STORAGE_TOKENS[row.category]),
                    STORAGE_CATEGORIES[row.category],
                ]
            ),
            row.name or _op(row.op, rank),
            row.module,
            html.Code(row.where) if row.where else "",
            units.count(row.storages),
            size,
            units.share_cell(row.bytes / whole),
        )
        for row, size in zip(shown.itertuples(index=False), sizes, strict=True)
    ]
    heads = ("category", "parameter or operator", "module", "where", "tensors", head, "share")
    table = widgets.plain_table(heads, rows, (4, 5, 6))
    rest = parts["bytes"].iloc[len(shown) :]
    if rest.empty:
        return html.Div(table, className="wide-table")
    words = f"{units.size(int(rest.sum()))} more in {units.counted(len(rest), 'smaller row')}."
    return html.Div([table, html.P(words, className="muted")], className="wide-table")
