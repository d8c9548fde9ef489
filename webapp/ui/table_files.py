"""Answers requests for tables as files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import flask
import pyarrow as pa

from lanescope.webapp.analysis.tables import write_csv, write_parquet

TABLE_FORMATS: dict[str, tuple[Any, str]] = {
    "csv": (write_csv, "text/csv; charset=utf-8"),
    "parquet": (write_parquet, "application/vnd.apache.parquet"),
}
"""What a table can be downloaded as: what writes it, and its media type."""


def file_of(name: str, kind: str, pieces: Iterator[pa.Table]) -> flask.Response:
    """Returns a table as a file to keep, `<name>.<kind>`."""
    write, mimetype = TABLE_FORMATS[kind]
    sink = io.BytesIO()
    write(pieces, sink)
    response = flask.Response(sink.getvalue(), mimetype=mimetype)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    response.headers["Cache-Control"] = "no-store"
    return response
