"""Tables of the run to take away: GET /table/<name>.csv and /table/<name>.parquet."""

from __future__ import annotations

import io
from typing import Any

import flask

from lanescope.collector import schema
from lanescope.webapp.errors import RunError
from lanescope.webapp.exporters.tables import NAMES, pieces_of, write_csv, write_parquet
from lanescope.webapp.run import Run
from lanescope.webapp.units import count

MOST_ROWS = 2_000_000
"""Of a table of events: it is put together in memory."""

_KINDS: dict[str, tuple[Any, str]] = {
    "csv": (write_csv, "text/csv; charset=utf-8"),
    "parquet": (write_parquet, "application/vnd.apache.parquet"),
}


def register(server: flask.Flask, run: Run) -> None:
    """Adds the route."""

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
        write, mimetype = _KINDS[kind]
        sink = io.BytesIO()
        try:
            write(pieces_of(run, name), sink)
        except RunError as error:
            return {"error": str(error)}, 500
        response = flask.Response(sink.getvalue(), mimetype=mimetype)
        response.headers["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
        response.headers["Cache-Control"] = "no-store"
        return response
