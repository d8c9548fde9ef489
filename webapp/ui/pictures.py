"""Small pictures in the text: a course over steps, a heat map of evidence."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence

import numpy as np
from dash import html
from dash.development.base_component import Component

from lanescope.webapp.analysis.headlines import MAX_COLUMNS, HeatPicture
from lanescope.webapp.ui import widgets

_WIDTH, _HEIGHT = 120, 24
_MAX_POINTS = 60
_PALE = ("waiting", "python", "data")
"""Tokens of areas that are too pale for a thin line."""


def sparkline(values: Sequence[float], token: str) -> Component:
    """Returns a line through the values in the colour of a token; gaps where they are not finite.

    It is a mask over the colour, since a document of Dash cannot hold SVG of its own.
    """
    course = np.asarray(values, float)
    if len(course) > _MAX_POINTS:
        course = np.array([np.nanmean(part) for part in np.array_split(course, _MAX_POINTS)])
    known = course[np.isfinite(course)]
    if len(known) < 2:
        return html.I(className="spark", **widgets.attributes(aria_hidden="true"))
    # A first step that is many times longer than all others would flatten them.
    usual = float(np.median(known))
    high = min(float(known.max()), 3 * usual) if usual > 0 else float(known.max())
    low = float(known.min())
    course, spread = np.minimum(course, high), max(high - low, 1e-300)
    x = np.linspace(2, _WIDTH - 2, len(course))
    y = _HEIGHT - 2 - (course - low) / spread * (_HEIGHT - 4)
    path, pen = "", "M"
    for at, value in zip(x, y, strict=True):
        if not np.isfinite(value):
            pen = "M"
            continue
        path += f"{pen}{at:.1f} {value:.1f}"
        pen = "L"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none"><path d="{path}" fill="none" stroke="#000" '
        'stroke-width="1.5" vector-effect="non-scaling-stroke"/></svg>'
    )
    address = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    colour = f"var(--{token})"
    if token in _PALE:
        colour = f"color-mix(in srgb, {colour} 55%, var(--ink))"
    style = {"--shape": f'url("{address}")', "--colour": colour}
    return html.I(className="spark", style=style, **widgets.attributes(aria_hidden="true"))


def heat(picture: HeatPicture) -> Component:
    """Returns a heat map whose cells grow redder from 0 to 1; of many columns, the worst of
    neighbours."""
    values = picture.values
    if values.shape[1] > MAX_COLUMNS:
        parts = np.array_split(values, MAX_COLUMNS, axis=1)
        values = np.stack([np.fmax.reduce(part, axis=1) for part in parts], axis=1)
    rows = [
        html.Tr(
            [
                html.Th(name, scope="row"),
                *[
                    html.Td(
                        style={"--heat": f"{value:.3f}"} if np.isfinite(value) else {},
                        className="" if np.isfinite(value) else "none",
                    )
                    for value in row
                ],
            ]
        )
        for name, row in zip(picture.rows, values, strict=True)
    ]
    return html.Figure(
        [
            html.Figcaption(picture.title),
            html.Table(html.Tbody(rows)),
            html.Div([html.Span(picture.first), html.Span(picture.last)], className="ends"),
        ],
        className="heat-picture",
    )
