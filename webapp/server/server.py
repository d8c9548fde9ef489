"""The page's server: one Dash app per run, with nothing it does not need and nothing from outside.

Every answer carries a strict content security policy: scripts come from this server or are the one
inline script whose hash Dash names, and nothing may be evaluated. Styles may be inline, because
Dash's components, ag-grid and Plotly all write style elements. Requests whose Host header is not a
name of this machine are refused, so that a foreign page cannot reach the server by rebinding DNS,
and so are those that another page sent, as the browser marks them.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import logging
import re
from collections.abc import Sequence
from typing import Any

import flask
from dash import Dash, set_props
from dash.exceptions import DependencyException
from werkzeug.exceptions import HTTPException

from lanescope import assets
from lanescope.assets.bundling import MODULES, script
from lanescope.webapp.analysis.check_limits import Settings
from lanescope.webapp.analysis.checks import DEFAULTS
from lanescope.webapp.analysis.plugin import Page, load, pages
from lanescope.webapp.runs.run import Run
from lanescope.webapp.server import data_routes, frame
from lanescope.webapp.server.auth import LOCAL_NAMES, TOKEN_PARAMETER
from lanescope.webapp.server.callback_checks import check_callbacks
from lanescope.webapp.server.dash_page import DashPage, index_html, serve_charts
from lanescope.webapp.server.request_queues import RETRY_AFTER_S, Queue, Queues
from lanescope.webapp.timeline import note_routes, routes
from lanescope.webapp.timeline.search import routes as search_routes
from lanescope.webapp.timeline.search.lookup import selecting
from lanescope.webapp.timeline.timeline import Timeline
from lanescope.webapp.ui import ids, states
from lanescope.webapp.ui.context import Context
from lanescope.webapp.ui.elements import fixed
from lanescope.webapp.ui.examination import Examination

PAGE_SCRIPT = "page/main.js"
"""The module that starts the page."""

HOOKS = "page/dash_hooks.js"
"""The one of them that is a classic script: Dash calls its functions before modules have run."""

_PORT = re.compile(r":[0-9]{1,5}$")

_log = logging.getLogger(__name__)


def make_app(
    run: Run,
    baseline: Run | None = None,
    *,
    trusted_hosts: Sequence[str] = LOCAL_NAMES,
    index: Timeline | None = None,
    settings: Settings = DEFAULTS,
    live: routes.Live | None = None,
    queues: Queues | None = None,
    frame_token: str | None = None,
    examination: Examination | None = None,
) -> Dash:
    """Returns the Dash app of a run. `trusted_hosts` are the names it may be addressed by.

    With `frame_token`, pages of others may frame the document whose address has that token.

    `live` returns the state of a run that is still being recorded, see `live_run`. Heavy requests
    wait in `queues`, which apps of one server share. `examination` makes the report in another
    process.

    The index of the timeline is taken from the cache or built, unless it is given. Raises RunError
    where the run cannot be read.
    """
    opened = Timeline.open(run, baseline) if index is None else index
    context = Context(run, baseline, opened, settings, examination=examination)
    app = DashPage(
        context.parts,
        __name__,
        title=f"{run.title} · LaneScope",
        update_title="",
        assets_folder=str(assets.FOLDER),
        # Modules, loaded by themselves.
        assets_path_ignore=["timeline", "built", "graph", "vendor"],
        serve_locally=True,
        suppress_callback_exceptions=True,  # pages other than the one shown are not in the layout
        on_error=_callback_failed,
        **_without_extras(),
    )
    app.index_string = index_html(app, *_register_modules(app.server))
    serve_charts(app.server)
    routes.register(app.server, opened, live=live)
    search_routes.register(app.server, opened)
    note_routes.register(app.server, opened)
    data_routes.register(app.server, context)
    listed = [page for page in pages() if not page.shown or load(page.shown)(run)]
    app.layout = fixed(frame.layout(context, listed))
    frame.register(app, context, listed)
    for page in listed:
        load(page.register)(app, context)
    # Dash gets ready in its first request, and refuses its own scripts to others meanwhile.
    with app.server.test_request_context():
        app.server.preprocess_request()
    _secure(app, trusted_hosts, frame_token)
    check_callbacks(app)
    _queue(app.server, queues or Queues())
    _select(app.server, opened)
    _redirect(app.server, listed)
    return app


def _without_extras() -> dict[str, Any]:
    """Options that switch off what newer versions of Dash offer to machines."""
    known = inspect.signature(Dash.__init__).parameters
    return {name: value for name, value in {"enable_mcp": False}.items() if name in known}


def _register_modules(server: flask.Flask) -> tuple[str, str]:
    """Serves the timeline's scripts under addresses that change with them.

    Returns those of the bundle of modules, and of the classic script.
    """
    bundle, source_map = script(PAGE_SCRIPT)
    hooks = (MODULES / HOOKS).read_text(encoding="utf-8")
    digest = hashlib.sha256((bundle + hooks).encode()).hexdigest()[:12]
    texts = {
        PAGE_SCRIPT: f"{bundle}//# sourceMappingURL=/modules/{digest}/{PAGE_SCRIPT}.map\n",
        f"{PAGE_SCRIPT}.map": source_map,
        HOOKS: hooks,
    }

    @server.get(f"/modules/{digest}/<path:name>")
    def module(name: str) -> flask.Response:
        if name not in texts:
            flask.abort(404)
        kind = "application/json" if name.endswith(".map") else "text/javascript"
        response = flask.Response(texts[name], mimetype=kind)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response

    return f"/modules/{digest}/{PAGE_SCRIPT}", f"/modules/{digest}/{HOOKS}"


def _secure(app: Dash, trusted_hosts: Sequence[str], frame_token: str | None) -> None:
    server: flask.Flask = app.server
    names = {name.lower() for name in trusted_hosts}
    server.config["MAX_CONTENT_LENGTH"] = 4 << 20
    scripts = " ".join(["'self'", *app.csp_hashes()])
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    policy += _NOT_FRAMED
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    }

    @server.before_request
    def check_host() -> None:
        """Flask's TRUSTED_HOSTS would do, but cannot name an IPv6 address such as [::1]."""
        host = flask.request.headers.get("Host", "").lower()
        if _PORT.sub("", host) not in names:
            flask.abort(400, "this server has another name")
        origin = flask.request.headers.get("Origin")
        foreign = origin is not None and origin.lower().partition("://")[2] != host
        allowed = _opens_a_page(flask.request) or _framed(flask.request, frame_token)
        if foreign or (_from_elsewhere(flask.request) and not allowed):
            flask.abort(403, "requests from other sites are refused")

    @server.after_request
    def add_headers(response: flask.Response) -> flask.Response:
        response.headers.update(headers)
        if _framed(flask.request, frame_token):
            response.headers["Content-Security-Policy"] = policy.replace(_NOT_FRAMED, "")
            del response.headers["X-Frame-Options"]
        return response

    @server.errorhandler(DependencyException)
    def no_such_script(_: DependencyException) -> Any:
        return {"error": "there is no such script"}, 404

    @server.errorhandler(Exception)
    def say_little(error: Exception) -> Any:
        """A stranger learns the status, the log the rest."""
        if isinstance(error, HTTPException):
            return error
        _log.error("request %s failed", flask.request.path, exc_info=error)
        return {"error": "the server could not answer; its log says why"}, 500


def _from_elsewhere(request: flask.Request) -> bool:
    """True where the browser says that a page of another site, or of another port, sends it."""
    return request.headers.get("Sec-Fetch-Site", "none").lower() not in {"none", "same-origin"}


def _opens_a_page(request: flask.Request) -> bool:
    """True for a link that somebody follows to one of the pages: these may stand anywhere."""
    headers = {name: request.headers.get(f"Sec-Fetch-{name}", "").lower() for name in _NAVIGATION}
    return request.method == "GET" and headers == _NAVIGATION and str(request.url_rule) in _PAGES


def _framed(request: flask.Request, token: str | None) -> bool:
    """True for a page in a frame: its address has the token, or such a page leads to it."""
    if token is None or request.method != "GET" or str(request.url_rule) not in _PAGES:
        return False
    given = request.args.get(TOKEN_PARAMETER, "")
    inside = {"Mode": "navigate", "Dest": "iframe", "Site": "same-origin"}
    within = {name: request.headers.get(f"Sec-Fetch-{name}", "").lower() for name in inside}
    return hmac.compare_digest(given.encode(), token.encode()) or within == inside


_NOT_FRAMED = "; frame-ancestors 'none'"
_NAVIGATION = {"Mode": "navigate", "Dest": "document"}
_PAGES = {"/", "/<path:path>"}
"""The rules by which Dash serves the document that all pages are in."""


def _queue(server: flask.Flask, queues: Queues) -> None:
    @server.before_request
    def enter() -> Any:
        queue = queues.of(flask.request.path)
        if queue is None:
            return None
        if not queue.enter():
            words = f"the server is busy; ask again in {RETRY_AFTER_S} seconds"
            return {"error": words}, 503, {"Retry-After": str(RETRY_AFTER_S)}
        flask.g.queue = queue
        return None

    @server.teardown_request
    def leave(_: BaseException | None) -> None:
        queue: Queue | None = flask.g.pop("queue", None)
        if queue is not None:
            queue.leave()


def _select(server: flask.Flask, timeline: Timeline) -> None:
    """Sends an address that names a slice by its lane and start on to one that selects it; where
    none is there, the page says so."""

    @server.before_request
    def select() -> Any:
        if flask.request.path == "/timeline" and "at" in flask.request.args:
            found = selecting(timeline, flask.request.full_path)
            return flask.redirect(found) if "sel=" in found else None
        return None


def _redirect(server: flask.Flask, listed: Sequence[Page]) -> None:
    """Sends addresses of earlier versions to today's: `/?t=...` was one of the timeline."""
    former = {old: page.path for page in listed for old in page.former}

    @server.before_request
    def redirect() -> Any:
        path, query = flask.request.path, flask.request.query_string.decode()
        today = former.get(path) or ("/timeline" if path == "/" and query else None)
        return flask.redirect(f"{today}?{query}" if query else today) if today else None


def _callback_failed(error: Exception) -> Any:
    """A callback's error becomes a sentence in its place, or else at the foot of the page.

    Dash would show nothing at all.
    """
    values = states.error_outputs(error)
    if values is None:
        set_props(ids.NOTICE, {"children": [states.failed(error)], "hidden": False})
    return values
