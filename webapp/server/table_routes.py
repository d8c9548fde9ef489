"""Tables to take away: GET /table/<name>.csv and /table/<name>.parquet."""

from __future__ import annotations

from typing import Any

import flask

from lanescope.collector.format import schema
from lanescope.webapp.analysis.plugin import changes, tables
from lanescope.webapp.analysis.tables import MAX_ANSWER_ROWS, table_pieces
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.units import count
from lanescope.webapp.ui.table_files import TABLE_FORMATS, file_of


def register(server: flask.Flask, run: Run, baseline: Run | None = None) -> None:
    """Adds the routes."""

    @server.get("/table/<name>.<kind>")
    def table(name: str, kind: str) -> Any:
        if kind not in TABLE_FORMATS or name not in {*schema.TABLES, *tables(), *changes()}:
            flask.abort(404)
        if name in schema.TABLES and run.counts[name] > MAX_ANSWER_ROWS:
            words = (
                f"{name} has {count(run.counts[name])} rows, more than the page gives out: "
                f"lanescope export RUN --to {kind} --table {name} -o FILE"
            )
            return {"error": words}, 413
        try:
            return file_of(name, kind, table_pieces(run, name, baseline=baseline))
        except RunError as error:
            return {"error": str(error)}, 500
