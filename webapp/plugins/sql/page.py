"""Any question that the other pages do not ask, in SQL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import flask
import pyarrow as pa
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.collector.format import schema
from lanescope.webapp.analysis.links import (
    AROUND_NS,
    group_lane,
    step_link,
    thread_lane,
    timeline_address,
)
from lanescope.webapp.analysis.plugin import tables
from lanescope.webapp.analysis.tables import MAX_ANSWER_ROWS, json_text
from lanescope.webapp.plugins.sql import ids
from lanescope.webapp.plugins.sql.queries import Queries
from lanescope.webapp.runs import units
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.table_files import TABLE_FORMATS, file_of

SHOWN = 2_000
"""Rows that the page shows; the files have all."""

_MAX_LENGTH = 500
"""Characters of a cell that the page shows."""

EXACT = 1 << 53
"""The browser has no larger whole numbers."""

EXAMPLES = {
    "Operators by total time": """\
SELECT name, count(*) AS calls, round(sum(self_ns) / 1e6, 3) AS self_ms,
       round(max(duration_ns) / 1e6, 3) AS longest_ms
FROM op
GROUP BY name
ORDER BY self_ms DESC""",
    "Time of each phase, by step": """\
SELECT rank, step, kind, round(sum(duration_ns) / 1e6, 3) AS ms
FROM phase
WHERE kind != 'mark'
GROUP BY rank, step, kind
ORDER BY rank, step, ms DESC""",
    "Modules by time in backward": """\
SELECT module, count(*) AS ops, round(sum(self_ns) / 1e6, 3) AS self_ms
FROM op
WHERE phase = 'backward'
GROUP BY module
ORDER BY self_ms DESC""",
    "Which rank comes last to its collectives": """\
WITH late AS (
  SELECT rank, "group", sequence,
         start_ns - min(start_ns) OVER (PARTITION BY "group", sequence) AS behind_ns
  FROM collective)
SELECT rank, count(*) AS calls, round(avg(behind_ns) / 1e6, 3) AS mean_ms,
       round(max(behind_ns) / 1e6, 3) AS worst_ms
FROM late
GROUP BY rank
ORDER BY mean_ms DESC""",
    "Smallest gradients of the last step": """\
SELECT parameter, norm, numel
FROM gradient
WHERE step = (SELECT max(step) FROM gradient)
ORDER BY norm
LIMIT 50""",
}

_LEAD = (
    "Query the run's tables in DuckDB's SQL. Times are whole nanoseconds from the start of the "
    "run, on one axis for all ranks. A query reads these tables only: no file, no network, no "
    "extension; it ends after some seconds."
)


def layout(_: Context) -> Component:
    """Returns the query above, its answer below."""
    first = next(iter(EXAMPLES.values()))
    return widgets.page(
        "SQL",
        _LEAD,
        widgets.controls(widgets.choice("example", ids.SQL_EXAMPLE, list(EXAMPLES), wide=True)),
        html.Label("query", htmlFor=ids.SQL_QUERY),
        dcc.Textarea(
            id=ids.SQL_QUERY,
            value=first,
            rows=9,
            spellCheck=False,
            className="sql",
            persistence=True,
            persistence_type="session",
        ),
        html.Div(
            html.Button("Run the query", id=ids.SQL_RUN, className="run"), className="controls"
        ),
        html.Div(id=ids.SQL_ANSWER, **widgets.attributes(aria_live="polite")),
        html.H2("Tables"),
        _tables(),
    )


def register(app: Dash, context: Context) -> None:
    """Answers the button and the examples; /query.csv?sql=... has all rows."""
    queries = Queries(context.run)
    grids.answer_rows(app, ids.SQL_TABLE)

    server: flask.Flask = app.server

    @server.get("/query.<kind>")
    def query(kind: str) -> Any:
        if kind not in TABLE_FORMATS:
            flask.abort(404)
        try:
            answer = queries.answer(flask.request.args.get("sql", ""), MAX_ANSWER_ROWS)
        except RunError as error:
            return {"error": str(error)}, 400
        return file_of("query", kind, iter([answer]))

    @app.callback(
        Output(ids.SQL_QUERY, "value"), Input(ids.SQL_EXAMPLE, "value"), prevent_initial_call=True
    )
    def example(name: str) -> Any:
        return EXAMPLES.get(name, no_update)

    @app.callback(
        Output(ids.SQL_ANSWER, "children"),
        Input(ids.SQL_RUN, "n_clicks"),
        State(ids.SQL_QUERY, "value"),
        running=[(Output(ids.SQL_RUN, "disabled"), True, False)],
        prevent_initial_call=True,
    )
    def ask(_: int, query: str | None) -> Any:
        try:
            answer = queries.answer(query or "", SHOWN + 1)
        except RunError as error:
            return widgets.note(str(error), "bad")
        return answered(answer, query or "", context)


def answered(answer: pa.Table, query: str, context: Context) -> list[Component]:
    """Returns a table of the rows, how many there are, and where to have all of them."""
    rows = rows_of(answer)
    places = places_of(answer.slice(0, SHOWN), context)
    leads = any(places)
    rows = [row | {"link": place} for row, place in zip(rows, places, strict=True)]
    numeric = [_numeric(field.type) for field in answer.schema]
    columns = [
        grids.column(f"c{i}", name, number=number, minWidth=90, flex=1 if number else 2)
        for i, (name, number) in enumerate(zip(answer.column_names, numeric, strict=True))
    ]
    words = units.counted(len(rows), "row")
    if answer.num_rows > SHOWN:
        words = f"the first {units.count(SHOWN)} rows"
    links: list[Any] = [f"{words}. Download all as "]
    for kind, title in (("csv", "CSV"), ("parquet", "Parquet")):
        links += [", "] if kind == "parquet" else []
        address = f"/query.{kind}?sql={quote(query)}"
        links.append(html.A(title, href=address, download=f"query.{kind}"))
    grid = grids.grid(
        ids.SQL_TABLE,
        columns,
        rows,
        label="Answer",
        empty="The query returned no rows.",
        leads="link" if leads else "",
        paged=True,
    )
    return [html.P(links, className="muted"), grid]


def places_of(answer: pa.Table, context: Context) -> list[str | None]:
    """Returns where the timeline shows each row: at its start_ns or time_ns, else at its step.

    With a rank, and a thread or a group, the slice that starts then is selected. None: the row has
    neither a time nor a step.
    """
    named = ("rank", "thread", "group", "start_ns", "time_ns", "duration_ns", "step")
    held = [name for name in named if answer.column_names.count(name) == 1]
    return [_place(row, context) for row in answer.select(held).to_pylist()]


def _place(row: dict[str, Any], context: Context) -> str | None:
    run = context.run
    numbers = {name: value for name, value in row.items() if type(value) is int and value >= 0}
    rank = numbers.get("rank", run.ranks[0])
    start = numbers.get("start_ns", numbers.get("time_ns"))
    if start is None:
        return step_link(run, rank, numbers["step"]) if "step" in numbers else None
    at = None
    if "rank" in numbers and row.get("thread"):
        at = (thread_lane(rank, str(row["thread"])), start)
    elif "rank" in numbers and row.get("group"):
        at = (group_lane(rank, str(row["group"])), start)
    end = start + numbers.get("duration_ns", AROUND_NS)
    return context.address(timeline_address(start, end, run.duration_ns, at))


def rows_of(answer: pa.Table) -> list[dict[str, Any]]:
    """Returns rows as the page's table takes them, fields c0, c1, ...: a query may name columns
    alike."""
    columns = [
        [_shown(value) for value in column.slice(0, SHOWN).to_pylist()] for column in answer.columns
    ]
    names = [f"c{i}" for i in range(len(columns))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _shown(value: Any) -> Any:
    """Returns a value as JSON can say it without changing it; what it cannot is text."""
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= EXACT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = json_text(value) if isinstance(value, (list, dict)) else str(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]} ..."


def _numeric(kind: pa.DataType) -> bool:
    tests: Sequence[Any] = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _tables() -> Component:
    rows = []
    for name, table in schema.TABLES.items():
        own = [column.name for column in table.columns]
        columns = [*own, "rank", *(["thread"] if table.per_thread else [])]
        rows.append((html.Code(name), ", ".join(columns)))
    analyses = ", ".join(tables())
    return html.Details(
        [
            html.Summary("Names of tables and columns"),
            widgets.plain_table(("table", "columns"), rows),
            html.P(["Results of analyses, as tables: ", html.Code(analyses)], className="muted"),
        ]
    )
