"""The findings as the timeline leads from one to the next: GET /api/findings.

Null where the run is still being examined: who wants them asks again.
"""

from __future__ import annotations

from typing import Any

import flask

from lanescope.webapp.ui import states
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.finding_places import address_of, marks_of


def register(server: flask.Flask, context: Context) -> None:
    """Adds the route."""

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
