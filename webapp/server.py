"""The page's server: one Dash app per run, with nothing it does not need and nothing from outside.

Every answer carries a strict content security policy: scripts come from this server or are the one
inline script whose hash Dash names, and nothing may be evaluated. Styles may be inline, because
Dash's components, ag-grid and Plotly all write style elements. Requests whose Host header is not a
name of this machine are refused, so that a foreign page cannot reach the server by rebinding DNS,
and so are those of which the browser says that another page sent them.
"""

from __future__ import annotations

import hashlib
import html
import inspect
import logging
import re
from collections.abc import Sequence
from typing import Any

import flask
from dash import Dash, set_props
from werkzeug.exceptions import HTTPException

from lanescope import assets
from lanescope.webapp import note_routes, routes, searching, table_routes
from lanescope.webapp.access import LOCAL_NAMES
from lanescope.webapp.analysis.checks import DEFAULTS
from lanescope.webapp.analysis.repeats import repetition_of
from lanescope.webapp.errors import RunError
from lanescope.webapp.exporters.page import ENTRY
from lanescope.webapp.pages import (
    checks,
    collectives,
    diff,
    frame,
    gradients,
    graph,
    hang,
    ids,
    overlap,
    overview,
    repeat,
    sql,
    timeline,
)
from lanescope.webapp.pages.context import Context
from lanescope.webapp.places import selecting
from lanescope.webapp.queries import Queries
from lanescope.webapp.run import Run
from lanescope.webapp.settings import Settings
from lanescope.webapp.timeline import Timeline

PAGES = (
    overview.PAGE, checks.PAGE, collectives.PAGE, hang.PAGE, overlap.PAGE, gradients.PAGE,
    graph.PAGE, diff.PAGE, sql.PAGE,
)  # fmt: skip
"""What the rail lists beside the timeline; of a repeated run also how it repeats."""

SCRIPTS = "timeline"
"""Folder of the timeline's modules: loaded as modules by the index page, not one by one by Dash."""

HOOKS = "dash_hooks.js"
"""The one of them that is a classic script: Dash calls its functions before modules have run."""

_PORT = re.compile(r":[0-9]{1,5}$")

log = logging.getLogger(__name__)


def make_app(
    run: Run,
    baseline: Run | None = None,
    *,
    trusted_hosts: Sequence[str] = LOCAL_NAMES,
    index: Timeline | None = None,
    settings: Settings = DEFAULTS,
    live: routes.Live | None = None,
) -> Dash:
    """The Dash app of a run. `trusted_hosts` are the names it may be addressed by.

    `live` says how a run stands that is still being recorded, see `following`.

    The index of the timeline is taken from the cache or built, unless it is given. Raises RunError
    where the run cannot be read.
    """
    opened = Timeline.open(run, baseline) if index is None else index
    queries = Queries(run)
    context = Context(run, baseline, opened, settings, queries)
    app = Dash(
        __name__,
        title=f"{run.title} · LaneScope",
        update_title="",
        assets_folder=str(assets.FOLDER),
        assets_path_ignore=[SCRIPTS],
        serve_locally=True,
        suppress_callback_exceptions=True,  # pages other than the one shown are not in the layout
        on_error=_callback_failed,
        **_without_extras(),
    )
    app.index_string = _index(app, _register_modules(app.server))
    routes.register(app.server, opened, live=live)
    searching.register(app.server, opened)
    note_routes.register(app.server, opened)
    table_routes.register(app.server, run, queries)
    pages = PAGES if repetition_of(run) is None else (*PAGES, repeat.PAGE)
    app.layout = frame.layout(context, pages)
    frame.register(app, context, pages)
    timeline.register(app, context)
    for page in pages:
        page.register(app, context)
    _secure(app, trusted_hosts)
    _select(app.server, opened)
    return app


def _without_extras() -> dict[str, Any]:
    """Options that switch off what newer versions of Dash offer to machines."""
    known = inspect.signature(Dash.__init__).parameters
    return {name: value for name, value in {"enable_mcp": False}.items() if name in known}


def _register_modules(server: flask.Flask) -> str:
    """Serves the timeline's modules under an address that changes with them; returns it.

    They import each other by relative names, so no name can carry a version, but their folder can:
    a browser then keeps them and asks for none of them again.
    """
    folder = assets.FOLDER / SCRIPTS
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.js")):
        digest.update(path.read_bytes())
    address = f"/modules/{digest.hexdigest()[:12]}"

    @server.get(f"{address}/<name>")
    def module(name: str) -> flask.Response:
        response = flask.send_from_directory(folder, name, mimetype="text/javascript")
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response

    return address


def _index(app: Dash, url: str) -> str:
    """The HTML around everything. Modules are named at once, so that they load side by side.

    The timeline's are `async`: modules would otherwise wait for all of Dash's scripts to have run.
    """
    modules = sorted(path.name for path in (assets.FOLDER / SCRIPTS).glob("*.js"))
    modules = [name for name in modules if name not in (HOOKS, ENTRY)]
    preloads = "\n".join(f'<link rel="modulepreload" href="{url}/{name}">' for name in modules)
    icon = app.get_asset_url("icon-app.svg")
    title = html.escape(app.title).replace("{%", "{&#37;")  # not one of Dash's placeholders
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
{{%metas%}}
<title>{title}</title>
<link rel="icon" type="image/svg+xml" href="{icon}">
{{%css%}}
<link rel="preload" as="fetch" crossorigin="anonymous" href="/api/run">
<script src="{url}/{HOOKS}"></script>
{preloads}
</head>
<body>
<script type="module" async src="{url}/main.js"></script>
{{%app_entry%}}
{{%config%}}
{{%scripts%}}
{{%renderer%}}
</body>
</html>"""


def _secure(app: Dash, trusted_hosts: Sequence[str]) -> None:
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
            "frame-ancestors 'none'",
        ]
    )
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
            flask.abort(400, "this server does not go by that name")
        origin = flask.request.headers.get("Origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            flask.abort(403, "another page may not ask this server")

    @server.after_request
    def add_headers(response: flask.Response) -> flask.Response:
        response.headers.update(headers)
        return response

    @server.errorhandler(Exception)
    def say_little(error: Exception) -> Any:
        """A stranger learns the status, the log the rest."""
        if isinstance(error, HTTPException):
            return error
        log.error("request %s failed", flask.request.path, exc_info=error)
        return {"error": "the server could not answer; its log says why"}, 500


def _select(server: flask.Flask, timeline: Timeline) -> None:
    """Sends an address that names a slice by its lane and start on to one that selects it."""

    @server.before_request
    def select() -> Any:
        if flask.request.path == "/timeline" and "at" in flask.request.args:
            return flask.redirect(selecting(timeline, flask.request.full_path))
        return None


def _callback_failed(error: Exception) -> None:
    """A callback's error becomes a sentence on the page; Dash would show nothing at all."""
    if isinstance(error, RunError):
        message = str(error)
    else:
        log.error("a callback failed", exc_info=error)
        message = "This could not be computed; the server's log says why."
    set_props(ids.NOTICE, {"children": message, "hidden": False})
