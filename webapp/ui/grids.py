"""Tables that sort and scroll. Of a long one the page gets the rows in sight."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Literal

import dash_ag_grid as dag
from dash import Dash, Input, Output, State, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.runs import units
from lanescope.webapp.ui.widgets import attributes, with_micro

LEADS = {
    "": None,
    "link": "Click a row, or press Enter, to see it on the timeline.",
    "op": "Click a row to see only that op's calls, again for the next one, with Shift for the one "
    "before.",
}
"""What a click on a row of a table does."""

MANY_ROWS, MANY_HEIGHT = 12, "340px"
"""A longer table scrolls: every row in sight is many elements of the page."""

PAGED_ROWS = 500
"""A longer `paged` table asks for the rows in sight."""

_KEPT_TABLES = 32
"""Tables whose rows the server keeps for pages that are open."""


def column(
    field: str,
    title: str,
    *,
    number: bool = False,
    text: bool = False,
    base: str = "",
    together: str = "",
    **more: Any,
) -> dict[str, Any]:
    """Returns a column of `grid`. `text`: shown is the row's `<field>_text`, sorted by is `field`.

    `base`: numbers in this unit (of `units.in_one_unit`), see `with_units`. `together`: a name; all
    columns that have it share a unit, so that they can be compared.
    """
    made: dict[str, Any] = {"field": field, "headerName": title, **more}
    if base:
        return (
            column(field, title, number=True, text=True, minWidth=84)
            | made
            | {"base": base, "together": together}
        )
    if number:
        made |= {"type": "rightAligned", "sortingOrder": ["desc", "asc"]}
    if text:
        made["valueFormatter"] = {"function": f"params.data ? params.data.{field}_text : ''"}
    return made


_OWN = ("base", "together")
"""Properties of a column that AG Grid does not know."""


def with_units(
    columns: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the columns, with the unit of those that have a base in their title, and the rows,
    with the texts of these."""
    shown = [dict(row) for row in rows]
    groups: dict[str, list[dict[str, Any]]] = {}
    heads = [{key: value for key, value in one.items() if key not in _OWN} for one in columns]
    for column, head in zip(columns, heads, strict=True):
        if rows and "base" in column:
            groups.setdefault(column["together"] or column["field"], []).append(
                column | {"to": head}
            )
    for group in groups.values():
        values = [row[one["field"]] for one in group for row in rows]
        unit, texts = in_unit("", values, group[0]["base"])
        for position, one in enumerate(group):
            one["to"]["headerName"] += unit
            for row, text in zip(shown, texts[position * len(rows) :], strict=False):
                row[f"{one['field']}_text"] = text
    return heads, shown


def in_unit(title: str, values: Iterable[float | None], base: str = "ns") -> tuple[str, list[str]]:
    """Returns the title of a column with the unit of its values, and these as texts; no unit where
    no value is known."""
    unit, texts = units.in_one_unit(values, base)
    if not any(text != units.NO_VALUE for text in texts):
        return title, texts
    return f"{title}, {with_micro(unit)}", texts


def before_and_now(
    base: Iterable[float], run: Iterable[float], unit: str = "ns"
) -> tuple[tuple[str, str, str], list[tuple[str, str, str]]]:
    """Titles of the columns baseline, run and change, in one unit, and the texts of the rows."""
    before, now = [*map(float, base)], [*map(float, run)]
    change = [b - a for a, b in zip(before, now, strict=True)]
    found, texts = units.in_one_unit([*before, *now, *change], unit)
    count = len(before)
    minus = [text.replace("-", "\N{MINUS SIGN}") for text in texts[2 * count :]]
    shown = with_micro(found)
    titles = (f"baseline, {shown}", f"run, {shown}", f"change, {shown}")
    return titles, [*zip(texts[:count], texts[count : 2 * count], minus, strict=True)]


_EVERY_COLUMN: dict[str, Any] = {
    "resizable": True,
    "sortable": True,
    "minWidth": 64,
    "suppressHeaderMenuButton": True,
    "suppressMovable": True,
}

_BY_CLICK = {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True}

_IN_SIGHT = {"rowModelType": "infinite", "columnSize": "responsiveSizeToFit"}
"""Of a table that asks for rows. Without rows at first, `flex` does not always give widths."""

_EVERY_GRID: dict[str, Any] = {
    "rowHeight": 26,
    "headerHeight": 30,
    "animateRows": False,
    "suppressColumnMoveAnimation": True,  # else columns overlap while they take their places
    "rowBuffer": 2,  # rows beside those in sight that are drawn: each is many elements
}


def grid(
    id: str,
    columns: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]] | None,
    *,
    label: str,
    height: str | None = None,
    empty: str = "Nothing to show.",
    selectable: bool = False,
    leads: Literal["", "link", "op"] = "",
    paged: bool = False,
) -> Component:
    """Returns a table that sorts and scrolls. Its cells are text; nothing in them is run as code.

    Without a `height` a table is as high as its rows; more than MANY_ROWS of them scroll. `rows`:
    None for a table that asks for those in sight (`getRowsRequest`), sorted and filtered
    by the server; it needs a height, and its columns `width` in place of `flex`. `selectable`: a
    click on a row puts it into `selectedRows`. `leads`: a click leads to the address in the row's
    `link`, or shows the calls of its `op`. `paged`: of more than PAGED_ROWS rows the page gets
    those in sight; `answer_rows` is registered for the table.
    """
    options: dict[str, Any] = {**_EVERY_GRID, "localeText": {"noRowsToShow": empty}}
    if height is None and len(rows or []) > MANY_ROWS:
        height = MANY_HEIGHT
    elif height is None:
        options["domLayout"] = "autoHeight"
    if selectable:
        options["rowSelection"] = _BY_CLICK
    heads, shown = with_units(columns, rows or [])
    asks = rows is None
    if paged and len(shown) > PAGED_ROWS:
        asks, options["context"] = True, {"rows": _kept.keep(shown)}
        heads = [_without_flex(one) for one in heads]
    table = dag.AgGrid(
        id=id,
        columnDefs=heads,
        **(_IN_SIGHT if asks else {"rowData": shown}),
        defaultColDef=_EVERY_COLUMN | ({} if asks else {"flex": 1}),
        dashGridOptions=options,
        className="grid",
        style={"height": height, "width": "100%"},
    )
    named = attributes(aria_label=label, **({"data_leads": leads} if leads else {}))
    region = html.Div(
        table,
        role="region",
        className="grid-place",
        style={"height": height},
        title=LEADS[leads],
        **named,
    )
    if leads != "link":
        return region
    return html.Div([region, html.P(LEADS[leads], className="muted")])


def _without_flex(column: dict[str, Any]) -> dict[str, Any]:
    share = column.get("flex", 1)
    return {"width": 110 * share} | {key: of for key, of in column.items() if key != "flex"}


class _KeptRows:
    """Rows of tables that pages show, the last ones asked for."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, Sequence[dict[str, Any]]] = OrderedDict()
        self._lock = Lock()  # several requests are answered at once

    def keep(self, rows: Sequence[dict[str, Any]]) -> str:
        """Returns the key of the rows. Equal rows have one key: a page made again adds none."""
        key = hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()
        with self._lock:
            self._tables[key] = rows
            self._tables.move_to_end(key)
            while len(self._tables) > _KEPT_TABLES:
                self._tables.popitem(last=False)
        return key

    def rows(self, key: str) -> Sequence[dict[str, Any]]:
        """Raises LookupError for rows that other tables have displaced."""
        with self._lock:
            if key not in self._tables:
                raise LookupError("the server keeps the rows of this table no longer")
            self._tables.move_to_end(key)
            return self._tables[key]


_kept = _KeptRows()


def answer_rows(app: Dash, *tables: str) -> None:
    """Has the server answer which rows of `paged` tables are in sight."""

    def answer(request: dict[str, Any] | None, options: dict[str, Any] | None) -> Any:
        key = (options or {}).get("context", {}).get("rows")
        if request is None or key is None:
            return no_update
        return rows_in_sight(_kept.rows(str(key)), request)

    for table in tables:
        app.callback(
            Output(table, "getRowsResponse"),
            Input(table, "getRowsRequest"),
            State(table, "dashGridOptions"),
        )(answer)


def rows_in_sight(rows: Sequence[Mapping[str, Any]], request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the getRowsResponse to a getRowsRequest: `rowData` in the order asked for, and
    `rowCount` of all rows. Those without a value come last."""
    for asked in reversed(request.get("sortModel", [])):
        field = asked["colId"]
        # NaN is not equal to itself.
        known = [row for row in rows if row.get(field) is not None and row[field] == row[field]]
        known.sort(key=lambda row: row[field], reverse=asked["sort"] == "desc")
        without = [row for row in rows if row.get(field) is None or row[field] != row[field]]
        rows = [*known, *without]
    shown = rows[int(request["startRow"]) : int(request["endRow"])]
    return {"rowData": list(shown), "rowCount": len(rows)}
