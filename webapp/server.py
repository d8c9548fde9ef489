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
from lanescope.webapp.analysis.findings import fault
from lanescope.webapp.analysis.repeats import repetition_of
from lanescope.webapp.errors import RunError
from lanescope.webapp.modules import FOLDER, joined
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

ENTRY = "main.js"
"""The module that starts the page."""

HOOKS = "dash_hooks.js"
"""The one of them that is a classic script: Dash calls its functions before modules have run."""

_PORT = re.compile(r":[0-9]{1,5}$")
_SCRIPT = re.compile(r"<script\b([^>]*)>")
_TYPE = re.compile(r' type="[^"]*"')

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
    app = _Page(
        __name__,
        title=f"{run.title} · LaneScope",
        update_title="",
        assets_folder=str(assets.FOLDER),
        assets_path_ignore=[FOLDER.name],
        serve_locally=True,
        suppress_callback_exceptions=True,  # pages other than the one shown are not in the layout
        on_error=_callback_failed,
        **_without_extras(),
    )
    app.index_string = _index(app, *_register_modules(app.server))
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


def _register_modules(server: flask.Flask) -> tuple[str, str]:
    """Serves the timeline's scripts under addresses that change with them.

    Returns those of the modules, joined into one, and of the classic script.
    """
    script, source_map = joined(ENTRY)
    hooks = (FOLDER / HOOKS).read_text(encoding="utf-8")
    digest = hashlib.sha256((script + hooks).encode()).hexdigest()[:12]
    texts = {
        ENTRY: f"{script}//# sourceMappingURL={ENTRY}.map\n",
        f"{ENTRY}.map": source_map,
        HOOKS: hooks,
    }

    @server.get(f"/modules/{digest}/<name>")
    def module(name: str) -> flask.Response:
        if name not in texts:
            flask.abort(404)
        kind = "application/json" if name.endswith(".map") else "text/javascript"
        response = flask.Response(texts[name], mimetype=kind)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response

    return f"/modules/{digest}/{ENTRY}", f"/modules/{digest}/{HOOKS}"


def _index(app: Dash, modules: str, hooks: str) -> str:
    """The HTML around everything.

    The timeline's script is `async`: a module would otherwise wait for the document to be parsed.
    """
    icon = app.get_asset_url("icon-app.svg")
    title = html.escape(app.title).replace("{%", "{&#37;")  # not one of Dash's placeholders
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
{{%metas%}}
<title>{title}</title>
<link rel="icon" type="image/svg+xml" href="{icon}">
<link rel="modulepreload" href="{modules}">
<link rel="preload" as="fetch" crossorigin="anonymous" href="/api/run">
{{%css%}}
<script src="{hooks}"></script>
</head>
<body>
<script type="module" async src="{modules}"></script>
{{%app_entry%}}
{{%config%}}
{{%scripts%}}
{{%renderer%}}
</body>
</html>"""


class _Page(Dash):
    """Dash whose own scripts are held back until the lanes are drawn: see dash_scripts.js."""

    def interpolate_index(
        self, metas: str = "", title: str = "", css: str = "", config: str = "",
        scripts: str = "", app_entry: str = "", favicon: str = "", renderer: str = "",
    ) -> str:  # fmt: skip
        """The index page, with every script of Dash's marked as one that does not run yet."""
        whole: Any = super().interpolate_index  # Dash leaves it untyped
        return str(
            whole(
                metas=metas, title=title, css=css, config=config, app_entry=app_entry,
                favicon=favicon, scripts=_SCRIPT.sub(_held, scripts),
                renderer=_SCRIPT.sub(_held, renderer),
            )
        )  # fmt: skip


def _held(script: re.Match[str]) -> str:
    return f'<script{_TYPE.sub("", script[1])} type="text/lanescope-held">'


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
        message = f"This could not be computed: {fault('a callback', error)}."
    set_props(ids.NOTICE, {"children": message, "hidden": False})
