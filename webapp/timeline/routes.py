"""The addresses under which the page fetches a run: its facts, tiles, slices, overlaps.

All but /api/run carry the run's etag, so an answer never changes and a browser may keep it. What
is asked wrongly is answered with {"error": one sentence}: 400 for an argument that cannot be read,
404 for what the run does not have, 409 for the etag of another run than the one being served, 500
where a file of the run can no longer be read.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import time
from collections.abc import Callable
from typing import Any

import flask

from lanescope.webapp.analysis import plugin
from lanescope.webapp.analysis.plugin import load
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.timeline.arguments import BadRequest, integer, is_forward, window_of
from lanescope.webapp.timeline.lane_pages import lanes_of_ranks
from lanescope.webapp.timeline.lod import TILE_BUCKETS, WHOLE
from lanescope.webapp.timeline.search.lookup import slices_in_window
from lanescope.webapp.timeline.span_details import nearest, run_facts, slice_facts
from lanescope.webapp.timeline.tile_format import compressed
from lanescope.webapp.timeline.timeline import NoSuch, Timeline

FOREVER = "private, max-age=31536000, immutable"
_MAX_LANES = 4096
"""Lanes that one tile request may ask for."""


Live = Callable[[], dict[str, Any]]


def register(
    server: flask.Flask, timeline: Timeline, prefix: str = "", live: Live | None = None
) -> None:
    """Adds the routes of a run to a server, under `prefix` (several runs need several).

    `live` returns the state of a run that is still being recorded.
    """
    routes = _Routes(timeline, live)
    rules: dict[str, Callable[..., flask.Response]] = {
        "/api/run": routes.run,
        **({} if live is None else {"/api/live": routes.live}),
        "/tile/<etag>/<level>/<index>": routes.tile,
        "/api/lanes/<etag>": routes.lanes,
        "/api/slice/<etag>/<lane>/<ref>": routes.slice,
        "/api/nearest/<etag>/<lane>": routes.nearest,
        "/api/look/<etag>/<lane>": routes.look,
        **{
            f"/api/{name}/<etag>": functools.partial(routes.of_plugin, entry)
            for name, entry in plugin.routes().items()
        },
    }
    for rule, view in rules.items():
        name = f"lanescope{prefix}{rule}".replace("/", "_").replace(".", "_")
        server.add_url_rule(prefix + rule, name, _guarded(view), methods=["GET"])


def _guarded(view: Callable[..., flask.Response]) -> Callable[..., flask.Response]:
    """Turns what a view raises about its arguments into an answer."""

    def answer(**arguments: str) -> flask.Response:
        try:
            return view(**arguments)
        except NoSuch as error:
            return _refusal(404, error)
        except BadRequest as error:
            return _refusal(400, error)
        except _OtherRun as error:
            return _refusal(409, error)
        except RunError as error:  # a file that was damaged or removed since the run was opened
            return _refusal(500, error)

    return answer


class _OtherRun(Exception):
    pass


class _Routes:
    def __init__(self, timeline: Timeline, live: Live | None) -> None:
        self._timeline = timeline
        self._live = live

    def live(self) -> flask.Response:
        response = _json({} if self._live is None else self._live())
        response.headers["Cache-Control"] = "no-store"
        return response

    def run(self) -> flask.Response:
        response = _json(run_facts(self._timeline) | {"live": self._live is not None})
        response.headers["Cache-Control"] = "no-cache"
        response.set_etag(hashlib.sha256(response.get_data()).hexdigest()[:32])
        response.make_conditional(flask.request)
        return response

    def tile(self, etag: str, level: str, index: str) -> flask.Response:
        self._check(etag)
        lanes = _numbers("lanes", flask.request.args.get("lanes", ""))
        place = (integer("level", level), integer("index", index), lanes)
        self._timeline.check(*place)
        most = _most(flask.request.args.get("rows"))
        part = _part(flask.request.args.get("part"))
        packs = flask.request.accept_encodings["zstd"] > 0
        tag = hashlib.sha256(repr((etag, place, most, part, packs)).encode()).hexdigest()[:32]
        if flask.request.if_none_match.contains(tag):
            response = flask.Response(status=304)
        else:
            began = time.perf_counter()
            payload = self._timeline.tile(*place, most, part)
            packed = compressed(payload) if packs else payload
            spent = (time.perf_counter() - began) * 1e3
            response = flask.Response(packed, mimetype="application/octet-stream")
            if packs:
                response.headers["Content-Encoding"] = "zstd"
            response.headers["Server-Timing"] = f"tile;dur={spent:.3f}"
        response.headers["Cache-Control"] = FOREVER
        response.headers["Vary"] = "Accept-Encoding"
        response.set_etag(tag)
        return response

    def lanes(self, etag: str) -> flask.Response:
        self._check(etag)
        ranks, lanes = (_numbers(name, flask.request.args.get(name)) for name in ("ranks", "lanes"))
        return _kept(_json(lanes_of_ranks(self._timeline, ranks, lanes)))

    def slice(self, etag: str, lane: str, ref: str) -> flask.Response:
        self._check(etag)
        place = (integer("lane", lane), integer("slice", ref))
        return _kept(_json(slice_facts(self._timeline, *place)))

    def nearest(self, etag: str, lane: str) -> flask.Response:
        self._check(etag)
        args = flask.request.args
        ahead = is_forward(args.get("dir", "next"))
        row, t = integer("row", args.get("row", "0")), integer("t", args.get("t", ""))
        found = nearest(self._timeline, integer("lane", lane), row, t, ahead)
        return _kept(_json(found))

    def look(self, etag: str, lane: str) -> flask.Response:
        self._check(etag)
        args = flask.request.args
        between = window_of(args)
        shorter = integer("shorter", args["shorter"]) if "shorter" in args else None
        row = integer("row", args.get("row", "0"))
        return _kept(
            _json(slices_in_window(self._timeline, integer("lane", lane), row, between, shorter))
        )

    def of_plugin(self, entry: str, etag: str) -> flask.Response:
        self._check(etag)
        answer: dict[str, Any] = load(entry)(self._timeline, flask.request.args)
        return _kept(_json(answer))

    def _check(self, etag: str) -> None:
        if etag != self._timeline.etag:
            raise _OtherRun(
                f"this page shows {shown(etag)}, but {shown(self._timeline.etag)} is "
                "served now; reload the page"
            )


def _numbers(name: str, text: str | None) -> list[int]:
    """Distinct numbers of a list like 0,1,2."""
    if text is None:
        return []
    parts = text.split(",", _MAX_LANES)
    if len(parts) > _MAX_LANES:
        raise BadRequest(f"more than {_MAX_LANES} {name} in one request, ask for them in parts")
    return list(dict.fromkeys(integer(name, part) for part in parts))


def _most(text: str | None) -> int | None:
    """Rows of each lane that are asked for; None: all."""
    if text is None:
        return None
    most = integer("rows", text)
    if most < 1:
        raise BadRequest(f"rows is {most}, expected 1 or more")
    return most


def _part(text: str | None) -> tuple[int, int]:
    """The buckets FROM-TO of a tile that are asked for; None: all."""
    if text is None:
        return WHOLE
    found = re.fullmatch(r"([0-9]{1,4})-([0-9]{1,4})", text, re.ASCII)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 0 <= first < last <= TILE_BUCKETS:
        raise BadRequest(f"part is {shown(text)}, expected two numbers of 0 to 1024 like 128-640")
    return first, last


def _json(value: dict[str, Any]) -> flask.Response:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return flask.Response(text, mimetype="application/json")


def _kept(response: flask.Response) -> flask.Response:
    response.headers["Cache-Control"] = FOREVER
    return response


def _refusal(status: int, error: Exception) -> flask.Response:
    response = _json({"error": str(error)})
    response.status_code = status
    response.headers["Cache-Control"] = "no-store"
    return response
