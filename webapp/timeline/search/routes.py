"""The routes of the search: names and modules as numbers, so that the page decides what matches.

Answers are like those of `routes`: {"error": one sentence} with 400 for what cannot be read and
409 for the etag of another run.
"""

from __future__ import annotations

from typing import Any

import flask

from lanescope.webapp.runs import units
from lanescope.webapp.timeline.search import marks
from lanescope.webapp.timeline.search.lookup import find
from lanescope.webapp.timeline.timeline import Timeline

_Answer = dict[str, Any] | tuple[dict[str, Any], int]


def register(server: flask.Flask, timeline: Timeline) -> None:
    """Adds /api/modules, /api/find and /api/hits."""

    @server.get("/api/modules/<etag>")
    def known_modules(etag: str) -> _Answer:
        if etag != timeline.etag:
            return _other()
        if timeline.run.counts["op"] > marks.MAX_MODULES:
            limit = units.count(marks.MAX_MODULES)
            return {"modules": [], "left_out": f"modules are searched in up to {limit} ops"}
        return {"modules": list(marks.modules(timeline).texts), "left_out": ""}

    @server.post("/api/find/<etag>")
    def find_next(etag: str) -> _Answer:
        if etag != timeline.etag:
            return _other()
        asked: Any = flask.request.get_json(silent=True)
        try:
            wanted = _wanted(timeline, asked)
            place = (int(asked["t"]), int(asked["lane"]), int(asked["row"]))
            forward = {"next": True, "prev": False}[asked["dir"]]
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            return {"error": "expected names, modules, t, lane, row and dir"}, 400
        found = find(timeline, wanted, place, forward)
        if found is None:
            return {"ref": None, "total": marks.place_among(timeline, wanted, place)[1]}
        key = (found["start_ns"], found["lane"], found["row"])
        found["position"], found["total"] = marks.place_among(timeline, wanted, key)
        return found

    @server.post("/api/hits/<etag>")
    def all_hits(etag: str) -> _Answer:
        if etag != timeline.etag:
            return _other()
        asked: Any = flask.request.get_json(silent=True)
        try:
            wanted = _wanted(timeline, asked)
            window = (int(asked["t0"]), int(asked["t1"]))
            lanes = {int(lane) for lane in asked["lanes"]}
            many = int(asked["buckets"])
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
            return {"error": "expected names, modules, t0, t1, lanes and buckets"}, 400
        if not 0 <= window[0] < window[1] <= 1 << 53 or not 1 <= many <= marks.MAX_BUCKETS:
            limits = f"0 <= t0 < t1 and 1 to {marks.MAX_BUCKETS} buckets"
            return {"error": f"expected {limits}, not {window} and {many}"}, 400
        return marks.hits(timeline, wanted, window, lanes, many)


def _wanted(timeline: Timeline, asked: Any) -> marks.SearchRequest:
    names = [int(name) for name in asked["names"]]

    def listed(part: str) -> list[int] | None:
        return None if asked.get(part) is None else [int(number) for number in asked[part]]

    def limit(part: str) -> int | None:
        return None if asked.get(part) is None else int(asked[part])

    return marks.SearchRequest(
        timeline,
        names,
        listed("modules") or [],
        least=limit("least"),
        most=limit("most"),
        ranks=listed("ranks"),
        within=listed("within"),
    )


def _other() -> _Answer:
    return {"error": "another run is being served now; reload the page"}, 409
