"""The part of the page that explains how the peak differs from the baseline's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from lanescope.webapp.plugins.memory.changes import CHANGE, memory_changes, memory_changes_by
from lanescope.webapp.plugins.memory.storages import STORAGE_CATEGORIES
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, states, widgets

_BY = "memory-changes-by"
_TABLE = "memory-changes"
_ABOUT = "memory-changes-about"

_GROUPS = {
    "category": "category",
    "module": "module",
    "op": "operator",
    "where": "line of the program",
    "name": "parameter",
}
_NO_GROUP = {
    "module": "outside of modules",
    "op": "no operator recorded",
    "where": "no line recorded",
    "name": "no parameters",
}
_MAX_ROWS = 15
MAX_CAUSES = 3
_MIN_SHARE = 0.05
"""Of all that changed; smaller causes are not in the sentence."""


def section() -> list[Component]:
    """Returns the heading, the choice of the grouping and the place of the table."""
    by = [{"label": title, "value": name} for name, title in _GROUPS.items()]
    return [
        html.H2("Peak against the baseline"),
        html.P(id=_ABOUT),
        widgets.controls(widgets.choice("differences by", _BY, by)),
        html.Div(states.loading("Comparing the peaks"), id=_TABLE, className="wide-table"),
        widgets.downloads("memory_changes"),
    ]


def register(app: Dash, base: Run, run: Run, rank_id: str, device_id: str) -> None:
    """Fills the section in for a rank and device."""

    @app.callback(
        Output(_ABOUT, "children"),
        Output(_TABLE, "children"),
        Input(rank_id, "value"),
        Input(device_id, "value"),
        Input(_BY, "value"),
    )
    def differ(rank: int, device: str, by: str) -> tuple[Any, Any]:
        every = memory_changes(base, run)
        mine = every[(every["rank"] == rank) & (every["device"] == device)]
        if mine.empty:
            return f"The baseline has no record of allocations to compare rank {rank} with.", ""
        return peak_note(mine), _table(memory_changes_by(mine, by if by in _GROUPS else "category"))


def base_peak(base: Run, run: Run, rank: int, device: str) -> int:
    """The bytes in use at the baseline's peak; 0 where it has no record of them."""
    every = memory_changes(base, run)
    mine = every[(every["rank"] == rank) & (every["device"] == device)]
    return int(mine["base_bytes"].sum())


def peak_note(changes: pd.DataFrame) -> str:
    """The difference of the peaks of a rank and device in words, with its largest causes."""
    now, before = int(changes["bytes"].sum()), int(changes["base_bytes"].sum())
    words = f"Peak {units.size(now)}, as much as the baseline's."
    if now != before:
        more = f"{units.size(abs(now - before))} {'more' if now > before else 'less'}"
        words = f"Peak {units.size(now)}, {more} than the baseline's {units.size(before)}."
    moved = memory_changes_by(changes, "category")
    least = _MIN_SHARE * float(moved[CHANGE].abs().sum())
    causes = [_cause(changes, row) for row in moved.itertuples() if abs(row.change_bytes) > least]
    return f"{words} {'; '.join(causes[:MAX_CAUSES])}." if causes else words


def _cause(changes: pd.DataFrame, row: Any) -> str:
    """A category's change and where most of it is: `Activations + 12 MB, most of it in ...`."""
    own = changes[changes["category"] == row.category]
    words = f"{STORAGE_CATEGORIES[row.category].capitalize()} {signed(row.change_bytes)}"
    places = []
    for key, template in (("module", "in {}"), ("op", "by {}"), ("where", "at {}")):
        grouped = memory_changes_by(own, key)
        top = grouped.iloc[0]
        same_way = np.sign(top[CHANGE]) == np.sign(row.change_bytes)
        if top[key] and same_way and abs(top[CHANGE]) > abs(row.change_bytes) / 2:
            places.append(template.format(top[key]))
    return f"{words}, most of it {' '.join(places)}" if places else words


def signed(count: float) -> str:
    """`+ 12 MB`."""
    sign = "+" if count >= 0 else "\N{MINUS SIGN}"
    return f"{sign} {units.size(abs(int(count)))}"


def _table(grouped: pd.DataFrame) -> Component:
    key = grouped.columns[0]
    changed = grouped[grouped[CHANGE] != 0]
    shown = changed.head(_MAX_ROWS)
    if shown.empty:
        return html.P("The peaks consist of the same.", className="muted")
    titles, sizes = grids.before_and_now(shown["base_bytes"], shown["bytes"], "B")
    rows = [
        (
            STORAGE_CATEGORIES.get(row[key], row[key]) or _NO_GROUP.get(key, ""),
            units.count(int(row["base_storages"])),
            units.count(int(row["storages"])),
            *texts,
        )
        for row, texts in zip(shown.to_dict("records"), sizes, strict=True)
    ]
    heads = (_GROUPS[key], "tensors, baseline", "tensors, run", *titles)
    return widgets.head_of_table(heads, rows, range(1, 6), len(changed))
