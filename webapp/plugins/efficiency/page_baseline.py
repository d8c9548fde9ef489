"""The part of the page that sets times and rates beside those of the baseline."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from lanescope.webapp.plugins.efficiency.changes import efficiency_changes, efficiency_changes_by
from lanescope.webapp.plugins.time.stream_work import short_title
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets

_BY = "efficiency-changes-by"
_TABLE = "efficiency-changes"

_GROUPS = {
    "shapes": ("operator and shapes", ["name", "shapes"]),
    "name": ("operator", ["name"]),
    "module": ("module", ["module"]),
}
_MAX_ROWS = 15


def section() -> list[Component]:
    """Returns the heading, the choice of the grouping and the place of the table."""
    by = [{"label": title, "value": name} for name, (title, _) in _GROUPS.items()]
    return [
        html.H2("Against the baseline"),
        widgets.controls(widgets.choice("differences by", _BY, by)),
        html.Div(
            states.loading("Comparing the rates"),
            id=_TABLE,
            className="wide-table long-names many-columns",
        ),
        widgets.downloads("efficiency_changes"),
    ]


def register(app: Dash, base: Run, run: Run, rank_id: str) -> None:
    """Fills the section in for a rank."""

    @app.callback(Output(_TABLE, "children"), Input(rank_id, "value"), Input(_BY, "value"))
    def differ(rank: int, by: str) -> Component:
        every = efficiency_changes(base, run)
        mine = every[every["rank"] == rank]
        if mine.empty:
            return html.P(f"The baseline has no rank to compare rank {rank} with.")
        return _table(mine, by if by in _GROUPS else "shapes")


def _table(changes: Any, by: str) -> Component:
    _, keys = _GROUPS[by]
    grouped = efficiency_changes_by(changes, keys)
    shown = grouped.head(_MAX_ROWS)
    times, lengths = grids.before_and_now(shown["base_time_ns"], shown["time_ns"])
    rates = [*shown["base_flops_per_s"], *shown["flops_per_s"]]
    unit, texts = units.in_one_unit(rates, "FLOP/s")
    moved = [*shown["base_bytes_per_s"], *shown["bytes_per_s"]]
    size, widths = units.in_one_unit(moved, "B/s")
    count = len(shown)
    rows = [
        (
            *_names(row, by),
            units.count(int(row["base_calls"])),
            units.count(int(row["calls"])),
            *lengths[i],
            *(found[at] for found in (texts, widths) for at in (i, count + i)),
        )
        for i, row in enumerate(shown.to_dict("records"))
    ]
    named = ("operator", "shapes") if by == "shapes" else (_GROUPS[by][0],)
    heads = (
        *named,
        *("calls, baseline", "calls, run", *times),
        *(f"rate, baseline, {unit}", f"rate, run, {unit}"),
        *(f"bandwidth, baseline, {size}", f"bandwidth, run, {size}"),
    )
    return widgets.head_of_table(heads, rows, range(len(named), len(heads)), len(grouped))


def _names(row: dict[str, Any], by: str) -> tuple[Any, ...]:
    if by == "module":
        return (row["module"] or "outside of modules",)
    name = html.Span(widgets.breakable(short_title(row["name"])), title=row["name"])
    return (name, html.Code(row["shapes"])) if by == "shapes" else (name,)
