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
from lanescope.webapp.ui.fixed import fixed

CHARTS = assets.FOLDER / "vendor/plotly/plotly-charts.min.js"
"""plotly.js with the kinds of charts that the pages draw."""

_PLOTLY = "/_dash-component-suites/plotly/package_data/plotly.min.js"
"""Where Dash loads plotly.js from, with the first chart."""

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
    callbacks answer with as few components as will do (see `ui.fixed`)."""

    def callback(self, *places: Any, **options: Any) -> Callable[..., Any]:
        """Registers a callback, as Dash does."""
        whole: Any = super().callback  # Dash leaves it untyped
        register = whole(*places, **options)

        def registered(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def answered(*given: Any) -> Any:
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
        """The index page, with every script of Dash's marked as one that does not run yet."""
        whole: Any = super().interpolate_index  # Dash leaves it untyped
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
    return f'<script{_TYPE.sub("", script[1])} type="text/lanescope-held">'
