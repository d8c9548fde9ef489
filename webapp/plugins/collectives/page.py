"""Who keeps whom waiting in collectives, and how fast is data moved?"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from lanescope.webapp.analysis.collective_calls import group_members, group_title
from lanescope.webapp.analysis.incomplete_collectives import incomplete_collectives
from lanescope.webapp.analysis.links import group_lane, timeline_address
from lanescope.webapp.plugins.collectives import charts, ids
from lanescope.webapp.plugins.collectives import page_devices as devices
from lanescope.webapp.plugins.collectives.collectives import collectives
from lanescope.webapp.plugins.collectives.communication import busy
from lanescope.webapp.plugins.collectives.skew import (
    arrivals,
    call_window,
    late_map,
    lateness,
    straggling,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import ranks_named, ranks_text
from lanescope.webapp.ui import grids, states, widgets
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_LEAD = (
    "Every collective of every rank, by process group and sequence number: which rank came last "
    "and by how much, how long the transfer itself took, and how much of it overlaps with compute. "
    "Click a cell or a row to see the call on the timeline, across all ranks."
)


def layout(_: Context) -> Component:
    """Returns the head of the page; `body` reads the calls of all ranks."""
    return widgets.page("Collectives", _LEAD, states.body_place("Aligning the calls of all ranks"))


def body(context: Context) -> list[Component]:
    """Returns heat map, ranks, charts by size, and a table of operations."""
    run = context.run
    table = collectives(run)
    if table.empty:
        return [_no_collectives(), *devices.section(run)]
    groups = [
        {
            "label": group_title(run, group) + (f", ranks {ranks_text(ranks)}" if ranks else ""),
            "value": group,
        }
        for group, ranks in sorted(group_members(run).items())
    ]
    return [
        *widgets.chart_section(
            "Arrival",
            [
                widgets.choice(
                    "process group", ids.COLLECTIVE_GROUP, groups, _busiest(run), wide=True
                )
            ],
            ids.COLLECTIVE_HEAT,
            ids.COLLECTIVE_NOTE,
            height=_heat_px(len(run.ranks)),
        ),
        html.H2("Ranks"),
        _ranks(run),
        widgets.downloads("communication", "collectives"),
        *devices.section(run),
        html.Div(
            [
                html.Div(
                    [
                        html.H2(title),
                        widgets.graph(id, height=340, what="the speed of the operations"),
                    ]
                )
                for title, id in (
                    ("Time by size", ids.COLLECTIVE_LATENCY),
                    ("Bandwidth by size", ids.COLLECTIVE_BANDWIDTH),
                )
            ],
            className="split even",
        ),
        html.H2("Operations"),
        html.P(
            "Latency, skew and transfer are medians over calls. Latency counts from a rank's own "
            "call, transfer from the last arrival; bandwidths are those of nccl-tests at that "
            "transfer time. A dash means unknown: ranks may leave such a call before the others "
            "come, or only one rank was recorded.",
            className="muted",
        ),
        _table(context, table),
    ]


def _no_collectives() -> Component:
    return states.empty(
        "This run holds no collectives.",
        "They are recorded from ",
        html.Code("torch.distributed"),
        ", DDP and FSDP by themselves, at every level. This run has a single rank, "
        "ended before the first one, or comes from a trace that does not name them.",
    )


def register(app: Dash, context: Context) -> None:
    """Draws the charts for the group and the theme; a click leads to the call."""
    run = context.run
    devices.register(app, run)
    grids.answer_rows(app, ids.COLLECTIVE_RANKS, ids.COLLECTIVE_TABLE)

    @app.callback(
        Output(ids.COLLECTIVE_HEAT, "figure"),
        Output(ids.COLLECTIVE_HEAT, "style"),
        Output(ids.COLLECTIVE_NOTE, "children"),
        Input(ids.COLLECTIVE_GROUP, "value"),
        Input(frame_ids.THEME, "data"),
    )
    def heat(group: str, theme: Theme | None) -> tuple[go.Figure, dict[str, str], str]:
        found = late_map(run, group)
        note = _note(run, group, found.late_ns, found.per_column)
        height = {"height": f"{_heat_px(len(found.ranks))}px"}
        return charts.late_heat(found, theme or "light"), height, note

    @app.callback(
        Output(ids.COLLECTIVE_LATENCY, "figure"),
        Output(ids.COLLECTIVE_BANDWIDTH, "figure"),
        Input(frame_ids.THEME, "data"),
    )
    def sizes(theme: Theme | None) -> tuple[go.Figure, go.Figure]:
        table = collectives(run)
        table["time_ns"] = table["transfer_p50_ns"].fillna(table["latency_p50_ns"])
        return (
            charts.by_size(table, "time_ns", "median transfer", theme or "light"),
            charts.by_size(table, "busbw_gbs", "bus bandwidth", theme or "light"),
        )

    def address(point: dict[str, Any], group: str) -> str | None:
        sequence = point.get("customdata")
        if not isinstance(sequence, int) or sequence < 0:
            return None
        rank = int(str(point["y"]).removeprefix("rank "))
        return context.address(call_address(run, group, sequence, rank) or "/timeline")

    widgets.open_on_click(app, ids.COLLECTIVE_HEAT, address, State(ids.COLLECTIVE_GROUP, "value"))


def _heat_px(ranks: int) -> int:
    return 170 + 22 * min(32, ranks)


def call_address(run: Run, group: str, sequence: int, rank: int) -> str | None:
    """Returns where the timeline shows a call on all its ranks, selected on one of them."""
    window = call_window(run, group, sequence)
    rows = lateness(run)
    mine = rows[(rows["rank"] == rank) & (rows["group"] == group) & (rows["sequence"] == sequence)]
    if window is None:
        return None
    at = None if mine.empty else (group_lane(rank, group), int(mine["start_ns"].iloc[0]))
    return timeline_address(*window, run.duration_ns, at)


def _busiest(run: Run) -> str:
    """The group with the most calls."""
    came = arrivals(run)
    if came.empty:
        return min(group_members(run))
    return str(came["group"].value_counts().index[0])


def _note(run: Run, group: str, late: Any, per_column: int) -> str:
    if late.size == 0:
        missing = sorted(
            {
                rank
                for wait in incomplete_collectives(run)
                if wait.group == group
                for rank in wait.missing
            }
        )
        if missing:
            return (
                f"No call of this group was made by all of its ranks: {ranks_named(missing)} did "
                "not come. The tab Hangs shows what each rank does instead."
            )
        seen = lateness(run).query("group == @group")["rank"].unique()
        if len(seen) == 1 and len(group_members(run)[group]) != 1:
            return (
                f"Only rank {seen[0]} of this group was recorded: which rank came last to its "
                "calls, and by how much, is unknown."
            )
        return "In this group no rank has to wait for another, or not all its ranks were recorded."
    if per_column == 1:
        return (
            "A column is one call; the stronger the colour, the later the rank came. The latest "
            "tenth of the calls has the full colour."
        )
    number = units.count(per_column)
    return f"A column is {number} calls; it shows the one to which the rank came latest."


def _ranks(run: Run) -> Component:
    table = straggling(run).set_index("rank")
    delays = table["alone_ns"].to_dict()
    rows = []
    for rank in sorted(run.ranks, key=lambda rank: -delays.get(rank, 0)):
        work, talk = busy(run, rank)
        both = work.intersection(talk).total
        own = table.loc[rank] if rank in table.index else None
        rows.append(
            {
                "rank": rank,
                "last": None if own is None else int(own["last"]),
                "last_text": "–" if own is None else _of(int(own["last"]), int(own["calls"])),
                "alone": None if own is None else int(own["alone_ns"]),
                "waited": None if own is None else int(own["wait_ns"]),
                "talk": talk.total,
                "exposed": talk.total - both,
                "hidden": both / talk.total if talk.total else None,
                "hidden_text": units.share_cell(both / talk.total if talk.total else None),
            }
        )
    columns = [
        grids.column("rank", "rank", number=True, maxWidth=80),
        grids.column("last", "came last in", number=True, text=True, minWidth=110),
        grids.column("alone", "delay it caused", base="ns", minWidth=150),
        grids.column("waited", "waited for others", base="ns", minWidth=160),
        grids.column("talk", "communication", base="ns", minWidth=150),
        grids.column("exposed", "exposed", base="ns", minWidth=110),
        grids.column("hidden", "overlapped with compute", number=True, text=True, minWidth=190),
    ]
    return grids.grid(ids.COLLECTIVE_RANKS, columns, rows, label="Ranks", paged=True)


def _of(part: int, whole: int) -> str:
    return f"{units.count(part)} of {units.count(whole)}"


def _table(context: Context, table: pd.DataFrame) -> Component:
    columns = [
        grids.column("name", "operation", flex=2, minWidth=120),
        grids.column("group", "group", minWidth=80, tooltipField="group"),
        grids.column("ranks", "ranks", number=True),
        grids.column("bytes", "size", base="B"),
        grids.column("calls", "calls", number=True, text=True),
        grids.column("latency_p50_ns", "latency", base="ns", minWidth=96),
        grids.column("latency_p99_ns", "p99", base="ns"),
        grids.column("skew_p50_ns", "skew", base="ns"),
        grids.column("skew_max_ns", "worst", base="ns"),
        grids.column("transfer_p50_ns", "transfer", base="ns", minWidth=100),
        grids.column("algbw", "algbw", base="B/s", minWidth=104),
        grids.column("busbw", "busbw", base="B/s", minWidth=104),
        grids.column("unfinished", "open", number=True),
    ]
    links = _slowest(context.run)
    rows = []
    for row in table.to_dict("records"):
        made = {name: row[name] for name in ("name", "group", "ranks", "unfinished")}
        made["bytes"] = row["bytes"]
        made |= {"calls": row["calls"], "calls_text": units.count(row["calls"])}
        for name in row:
            if name.endswith("_ns"):
                made[name] = None if pd.isna(row[name]) else float(row[name])
            elif name.endswith("_gbs"):
                made[name[:-4]] = None if pd.isna(row[name]) else float(row[name]) * 1e9
        link = links.get((row["name"], row["group"], row["bytes"]))
        made["link"] = link and context.address(link)
        rows.append(made)
    return grids.grid(
        ids.COLLECTIVE_TABLE, columns, rows, label="Operations", leads="link", paged=True
    )


def _slowest(run: Run) -> dict[tuple[str, str, int], str]:
    """Address of the call of each operation, group and size that its ranks waited longest for."""
    came = arrivals(run)
    worst = came.loc[came.groupby(["name", "group", "bytes"])["skew_ns"].idxmax()]
    found = {}
    for row in worst.itertuples():
        group, sequence = str(row.group), int(row.sequence)
        if (window := call_window(run, group, sequence)) is not None:
            at = group_lane(int(row.last_rank), group), int(row.last_ns)
            address = timeline_address(*window, run.duration_ns, at)
            found[str(row.name), group, int(row.bytes)] = address
    return found
