"""The figure of an autograd graph by module, without places. No Dash, no analysis.

The browser knows how wide the page is and places the boxes: assets/graph/graph_figure.js.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sequential

from lanescope.webapp.plugins.autograd_graph.autograd_graph import NO_GRADIENT_CAUSES
from lanescope.webapp.plugins.autograd_graph.module_graph import Graph, ModuleBox
from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import colour_bar, escaped, powers
from lanescope.webapp.ui.colours import Theme, ramp_colour, readable_ink, tokens
from lanescope.webapp.ui.theme import SEQUENTIAL, template

MAX_BOXES = 300
"""Of a drawing; each is three elements of the page."""
MAX_CUT_OFF = 60
"""Of these the boxes below."""
CHARACTER = 7.2
"""Px of a letter of 12 px, in the widest of the page's fonts."""
_MAX_LENGTH = 34
"""Letters of a module's path in its box; of longer ones the end, from the beginning of a name."""
_HEAD = 84
"""Px above the boxes, for the colours and the legend below them."""
SOFT = {"light": 0.6, "dark": 0.5}
"""How much of a colour a box has, the rest being the ground: words are read on it."""
_LISTED = 6
_MIN_DECADES = 2.0
"""That the colours span, so that equal norms look equal."""


def graph_drawing(
    graph: Graph,
    norms: Mapping[str, float],
    theme: Theme,
    chart: str,
    found: Collection[str] = (),
    broken: Mapping[str, str] | None = None,
    chosen: str = "",
) -> dict[str, Any]:
    """Returns modules from the loss downwards, coloured by the norm of their gradient in
    logarithms.

    Returns what the browser draws in the `chart` of that id: `figure`, whose first trace takes
    the lines, the second those that lead upwards, and the others with `meta` (names of boxes) their
    places; `boxes`: name -> px; `edges`; `alone`: name -> px, of boxes for rows below.

    `norms`: module -> norm of the gradient of its parameters. Modules without one are empty, those
    that are cut off are framed in red, in the last rows. The modules `found` and the one that is
    `chosen` are framed; at those in `broken` stands a mark, with its words. `customdata` is the
    module's path. Of more than MAX_BOXES boxes the first ones are drawn.
    """
    colour = tokens()[theme]
    drawn = graph.groups[:MAX_BOXES]
    labels = {group.name: _label(group, norms.get(group.module)) for group in drawn}
    figure = go.Figure(layout={"template": template(theme)})
    _lines(figure, "", colour["muted"])
    _lines(figure, "back to a module above", colour["muted"], "dot")
    frames = dict.fromkeys(found, colour["accent"]) | {chosen: colour["ink"]}
    _coloured_boxes(figure, drawn, labels, norms, theme, frames)
    if found and any(group.module in found for group in drawn):
        _key(
            figure,
            "found",
            {"symbol": "square-open", "color": colour["accent"], "line": {"width": 3}},
        )
    _marks(figure, drawn, broken or {}, colour["bad"])
    alone = _cut_off(figure, graph, theme)
    figure.update_layout(
        margin={"l": 4, "r": 32, "t": _HEAD, "b": 4},
        dragmode="pan",
        barmode="overlay",
        barcornerradius=4,
        legend={"yref": "container", "yanchor": "top"},
        xaxis={"visible": False},
        yaxis={"visible": False},
    )
    return {
        "chart": chart,
        "figure": figure,
        "boxes": {name: _width(label) for name, label in labels.items()},
        "edges": [pair for pair in graph.edges if labels.keys() >= set(pair)],
        "alone": {name: _width(label) for name, label in alone.items()},
    }


def _coloured_boxes(
    figure: go.Figure,
    drawn: Sequence[ModuleBox],
    labels: Mapping[str, str],
    norms: Mapping[str, float],
    theme: Theme,
    frames: Mapping[str, str],
) -> None:
    """Adds the boxes of modules, by the norm of their gradient, and the colour bar.

    `frames`: module -> colour of its frame.
    """
    colour = tokens()[theme]
    scale = _scale(norms[g.module] for g in drawn if norms.get(g.module, 0) > 0)
    ramp = _ramp(theme)
    kinds: dict[str, list[ModuleBox]] = {"": [], "no norm": [], "zero, or NaN": []}
    fills = {"no norm": colour["panel"], "zero, or NaN": colour["bad"]}
    for group in drawn:
        norm = norms.get(group.module)
        kinds["no norm" if norm is None else "" if norm > 0 else "zero, or NaN"].append(group)
    for kind, groups in kinds.items():
        own = [
            fills[kind] if kind else ramp_colour(ramp, _share(norms[g.module], scale))
            for g in groups
        ]
        words = [_words(g, norms.get(g.module)) for g in groups]
        framed = [frames.get(g.module) for g in groups]
        _boxes(figure, groups, labels, theme, kind, own, words, framed)
    if kinds[""]:
        _colour_bar(figure, ramp, scale)


def _ramp(theme: Theme) -> list[tuple[float, str]]:
    """Returns the colour scale of the norms: position in 0 to 1, colour."""
    panel = tokens()[theme]["panel"]
    scale = getattr(sequential, SEQUENTIAL[theme])
    return [
        (place / (len(scale) - 1), ramp_colour([(0, panel), (1, one)], SOFT[theme]))
        for place, one in enumerate(scale)
    ]


def _boxes(
    figure: go.Figure,
    groups: Sequence[ModuleBox],
    labels: Mapping[str, str],
    theme: Theme,
    name: str,
    fills: Sequence[str],
    words: Sequence[str],
    frames: Sequence[str | None],
) -> None:
    """Adds boxes of one kind, with an entry in the legend where it has a name.

    They are horizontal bars, which can be pointed at all over.
    """
    if not groups:
        return
    colour = tokens()[theme]
    if name:
        edge = {"width": 1, "color": frames[0] or colour["muted"]}
        _key(figure, name, {"symbol": "square", "color": fills[0], "size": 12, "line": edge})
    inks = (colour["ink"], "#000000", "#ffffff")
    figure.add_bar(
        orientation="h",
        name=name,
        meta=[g.name for g in groups],
        showlegend=False,
        text=[labels[g.name] for g in groups],
        textposition="inside",
        insidetextanchor="middle",
        constraintext="none",
        textangle=0,
        insidetextfont={"size": 12, "color": [readable_ink(fill, inks) for fill in fills]},
        customdata=[g.module for g in groups],
        hovertext=list(words),
        hoverinfo="text",
        marker={
            "color": list(fills),
            "line": {
                "color": [frame or colour["muted"] for frame in frames],
                "width": [3 if frame else 0.5 for frame in frames],
            },
        },
    )


def _label(group: ModuleBox, norm: float | None) -> str:
    name = group.module
    if len(name) > _MAX_LENGTH:
        end = name[-_MAX_LENGTH:]
        name = "\N{HORIZONTAL ELLIPSIS}" + end[end.find(".") + 1 :]
    part = f" ({group.part}/{group.parts})" if group.parts > 1 else ""
    value = "" if norm is None else f" \N{MIDDLE DOT} {float(f'{norm:.2g}'):g}"
    return escaped(name) + part + value


def _width(label: str) -> float:
    return round(CHARACTER * len(label)) + 20


def _words(group: ModuleBox, norm: float | None) -> str:
    kinds = [f"{count} \N{MULTIPLICATION SIGN} {kind}" for kind, count in group.kinds[:_LISTED]]
    more = len(group.kinds) - _LISTED
    of = f", part {group.part} of {group.parts}" if group.parts > 1 else ""
    lines = [f"<b>{escaped(group.module)}</b>{of}", f"{group.nodes} nodes", *kinds]
    if more > 0:
        lines.append(f"and {more} more kinds")
    if norm is not None:
        lines.append(f"gradient norm {units.number(norm)} of {len(group.parameters)} parameters")
    return "<br>".join(lines)


def _lines(figure: go.Figure, name: str, ink: str, dash: str = "solid") -> None:
    figure.add_scatter(
        mode="lines",
        hoverinfo="skip",
        showlegend=bool(name),
        name=name,
        line={"width": 1, "color": ink, "dash": dash},
    )


def _scale(norms: Iterable[float]) -> tuple[float, float]:
    """Returns log10 of the norms at both ends of the colour scale."""
    logs = [float(np.log10(norm)) for norm in norms if np.isfinite(norm)]
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)
    if high - low < _MIN_DECADES:
        low, high = (low + high - _MIN_DECADES) / 2, (low + high + _MIN_DECADES) / 2
    return low, high


def _share(norm: float, scale: tuple[float, float]) -> float:
    low, high = scale
    return float(np.clip((np.log10(norm) - low) / (high - low), 0, 1))


def _colour_bar(
    figure: go.Figure, ramp: Sequence[tuple[float, str]], scale: tuple[float, float]
) -> None:
    low, high = scale
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        hoverinfo="skip",
        showlegend=False,
        marker={
            "color": [low],
            "cmin": low,
            "cmax": high,
            "showscale": True,
            "colorscale": [list(stop) for stop in ramp],
            "colorbar": {
                **colour_bar("gradient norm", **powers(low, high, 4)),
                "orientation": "h",
                "tickangle": 0,
                "x": 0,
                "xanchor": "left",
                "y": 1,
                "yref": "container",
                "yanchor": "top",
                "lenmode": "pixels",
                "len": 280,
                "thickness": 8,
                "ypad": 0,
            },
        },
    )


def _key(figure: go.Figure, name: str, marker: Mapping[str, object]) -> None:
    """An entry of the legend."""
    figure.add_scatter(
        x=[None], y=[None], mode="markers", name=name, marker=dict(marker), hoverinfo="skip"
    )


def _marks(
    figure: go.Figure, groups: Sequence[ModuleBox], broken: Mapping[str, str], ink: str
) -> None:
    """Of modules in which a gradient ends: at the left side of the first of their boxes."""
    marked = [g for g in groups if g.module in broken and g.part == 1]
    if not marked:
        return
    figure.add_scatter(
        mode="markers",
        meta=[g.name for g in marked],
        name="a gradient ends here",
        customdata=[g.module for g in marked],
        hovertext=[broken[g.module] for g in marked],
        hoverinfo="text",
        marker={"symbol": "x", "size": 12, "color": ink, "line": {"width": 1, "color": "white"}},
    )


def _cut_off(figure: go.Figure, graph: Graph, theme: Theme) -> dict[str, str]:
    """Adds boxes of what gets no gradient; returns their names and labels."""
    colour = tokens()[theme]
    names = list(graph.cut_off)[:MAX_CUT_OFF]
    shown = {module: module or "the model itself" for module in names}
    groups = [ModuleBox(f"\N{BALLOT X} {one}", 0, (), (), one) for one in names]
    labels = {
        group.name: f"\N{BALLOT X} {escaped(shown[group.module][-_MAX_LENGTH:])}"
        for group in groups
    }
    words = [
        f"<b>{escaped(shown[one])}</b><br>{NO_GRADIENT_CAUSES[graph.cut_off[one]]}" for one in names
    ]
    fills, frames = [colour["panel"]] * len(groups), [colour["bad"]] * len(groups)
    _boxes(figure, groups, labels, theme, "cut off", fills, words, frames)
    return labels
