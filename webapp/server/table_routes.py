"""Tables to take away: GET /table/<name>.csv and /table/<name>.parquet; /query.csv?sql=... too."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import flask
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.webapp.exporters.table_files import NAMES, pieces_of, write_csv, write_parquet
from lanescope.webapp.plugins.sql.queries import MOST_ROWS, Queries
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.units import count

_KINDS: dict[str, tuple[Any, str]] = {
    "csv": (write_csv, "text/csv; charset=utf-8"),
    "parquet": (write_parquet, "application/vnd.apache.parquet"),
}


def register(server: flask.Flask, run: Run, queries: Queries) -> None:
    """Adds the routes."""

    @server.get("/table/<name>.<kind>")
    def table(name: str, kind: str) -> Any:
        if kind not in _KINDS or name not in NAMES:
            flask.abort(404)
        if name in schema.TABLES and run.counts[name] > MOST_ROWS:
            words = (
                f"{name} has {count(run.counts[name])} rows, more than the page gives out: "
                f"lanescope export RUN --to {kind} --table {name} -o FILE"
            )
            return {"error": words}, 413
        try:
            return _file(name, kind, pieces_of(run, name))
        except RunError as error:
            return {"error": str(error)}, 500

    @server.get("/query.<kind>")
    def query(kind: str) -> Any:
        if kind not in _KINDS:
            flask.abort(404)
        try:
            answer = queries.answer(flask.request.args.get("sql", ""), MOST_ROWS)
        except RunError as error:
            return {"error": str(error)}, 400
        return _file("query", kind, iter([answer]))


def _file(name: str, kind: str, pieces: Iterator[pa.Table]) -> flask.Response:
    write, mimetype = _KINDS[kind]
    sink = io.BytesIO()
    write(pieces, sink)
    response = flask.Response(sink.getvalue(), mimetype=mimetype)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    response.headers["Cache-Control"] = "no-store"
    return response
