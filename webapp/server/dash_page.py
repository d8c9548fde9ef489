"""The document that all pages are in: Dash with what it leaves to be wished for."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

import flask
from dash import Dash, ctx

from lanescope import assets
from lanescope.webapp.ui.elements import fixed
from lanescope.webapp.ui.parts import Parts

CHARTS = assets.FOLDER / "vendor/plotly/plotly-charts.min.js"
"""plotly.js with the kinds of charts that the pages draw."""

GENERATORS = "vendor/regenerator/runtime.js"
"""The part of Dash's polyfill that its scripts still call."""

_PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js"
"""Where Dash loads plotly.js from, with the first chart."""

_POLYFILL = re.compile(r'/_dash-component-suites/dash/deps/polyfill@[^"]*')
"""What Dash loads for browsers of 2015."""

_UNUSED = re.compile(r"<script\b[^>]*/_dash-component-suites/dash/dash_table/[^>]*></script>\n?")
"""Dash's first table, which no page has."""

_TABLES = "/_dash-component-suites/dash_ag_grid/"
"""Where what draws tables comes from, with the first table (see dash_hooks.js)."""

_SCRIPT = re.compile(r"<script\b([^>]*)>")
_TYPE = re.compile(r' type="[^"]*"')


def index_html(app: Dash, modules: str, hooks: str) -> str:
    """Returns the HTML around everything.

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


def serve_charts(server: flask.Flask) -> None:
    """Serves CHARTS where Dash has all of plotly.js, which takes the browser four times as long."""

    @server.get(_PLOTLY)
    def charts() -> flask.Response:
        return flask.send_file(CHARTS, mimetype="text/javascript")


class DashPage(Dash):
    """Dash whose own scripts are held back until the lanes are drawn: see dash_scripts.js. Its
    callbacks are counted in `parts`, and answer with as few components as will do (see
    `ui.elements`)."""

    def __init__(self, parts: Parts, *places: Any, **options: Any) -> None:
        super().__init__(*places, **options)
        self.parts = parts

    def callback(self, *places: Any, **options: Any) -> Callable[..., Any]:
        """Registers a callback, as Dash does."""
        whole: Any = super().callback  # Dash leaves it untyped
        register = whole(*places, **options)

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def answered(*given: Any) -> Any:
                with self.parts.making():
                    answer = function(*given)
                several = isinstance(ctx.outputs_list, list)
                return [fixed(one) for one in answer] if several else fixed(answer)

            register(answered)
            return function

        return registered

    def interpolate_index(
        self,
        metas: str = "",
        title: str = "",
        css: str = "",
        config: str = "",
        scripts: str = "",
        app_entry: str = "",
        favicon: str = "",
        renderer: str = "",
    ) -> str:
        """The index page, with every script of Dash's that is needed marked as one that does not
        run yet."""
        whole: Any = super().interpolate_index  # Dash leaves it untyped
        scripts = _POLYFILL.sub(self.get_asset_url(GENERATORS), _UNUSED.sub("", scripts))
        return str(
            whole(
                metas=metas,
                title=title,
                css=css,
                config=config,
                app_entry=app_entry,
                favicon=favicon,
                scripts=_SCRIPT.sub(_held, scripts),
                renderer=_SCRIPT.sub(_held, renderer),
            )
        )


def _held(script: re.Match[str]) -> str:
    when = "later" if _TABLES in script[1] else "held"
    return f'<script{_TYPE.sub("", script[1])} type="text/lanescope-{when}">'
