"""Tables to take away, and the findings as the timeline leads from one to the next.

GET /table/<name>.csv, /table/<name>.parquet and /api/findings: null where the run is still being
examined, who wants them asks again.
"""

from __future__ import annotations

from typing import Any

import flask

from lanescope.collector.format import schema
from lanescope.webapp.analysis.plugin import changes, tables
from lanescope.webapp.analysis.tables import MAX_ANSWER_ROWS, table_pieces
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.units import count
from lanescope.webapp.ui import states
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.finding_places import address_of, marks_of
from lanescope.webapp.ui.table_files import TABLE_FORMATS, file_of


def register(server: flask.Flask, context: Context) -> None:
    """Adds the routes."""
    run = context.run

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
            return file_of(name, kind, table_pieces(run, name, baseline=context.baseline))
        except RunError as error:
            return {"error": str(error)}, 404

    @server.get("/api/findings")
    def findings() -> dict[str, Any]:
        ids = (
            {lane.key: lane.id for lane in context.timeline.index.lanes} if context.timeline else {}
        )
        found = []
        report = context.report_within(states.PATIENCE_S)
        if report is None:
            return {"findings": None}
        for position, one in enumerate(report.findings):
            marks = [mark for mark in marks_of(context.run, one) if mark.lane in ids]
            found.append(
                {
                    "title": one.title,
                    "severity": one.severity,
                    "kind": one.kind,
                    "address": address_of(context, one, position),
                    "marks": [
                        {
                            "lane": ids[mark.lane],
                            "t0": mark.start_ns,
                            "t1": mark.end_ns,
                            "words": mark.words,
                            "missing": mark.missing,
                        }
                        for mark in marks
                    ],
                }
            )
        return {"findings": found}
