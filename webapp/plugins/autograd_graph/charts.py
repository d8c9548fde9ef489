"""The figure of an autograd graph by module. No Dash, no analysis."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from lanescope.webapp.plugins.autograd_graph.autograd_graph import CAUSES
from lanescope.webapp.plugins.autograd_graph.graph_layout import BOX, ROW, Layout, Point, laid_out
from lanescope.webapp.plugins.autograd_graph.module_graph import MAX_ACROSS, Graph, Group
from lanescope.webapp.runs import units
from lanescope.webapp.ui.charts import colour_bar, escaped, powers
from lanescope.webapp.ui.colours import Theme, over, readable, tokens
from lanescope.webapp.ui.theme import template

CHARACTER = 7.2
"""Px of a letter of 12 px, in the widest of the page's fonts."""
MAX_LENGTH = 34
"""Letters of a module's path in its box; of longer ones the end, from the beginning of a name."""
HEAD = 84
"""Px above the boxes, for the colours and the legend below them."""
SOFT = {"light": 0.6, "dark": 0.5}
"""How much of a colour a box has, the rest being the ground: words are read on it."""
LISTED = 6
MIN_DECADES = 2.0
"""That the colours span, so that equal norms look equal."""


@dataclass(frozen=True)
class Drawing:
    """A figure, and how large it has to be for its words to fit, px."""

    figure: go.Figure
    width: int
    height: int


def graph_figure(
    graph: Graph,
    norms: Mapping[str, float],
    theme: Theme,
    found: Collection[str] = (),
    broken: Mapping[str, str] | None = None,
    chosen: str = "",
    room: int = 0,
) -> Drawing:
    """Modules from the loss downwards, coloured by the norm of their gradient in logarithms.

    `norms`: module -> norm of the gradient of its parameters. Modules without one are empty, those
    that are cut off are framed in red, in the last rows. The modules `found` and the one that is
    `chosen` are framed; at those in `broken` stands a mark, with its words. `customdata` is the
    module's path. `room`: px across that there are, so that boxes are no wider than need be.
    """
    colour = tokens()[theme]
    labels = {group.name: _label(group, norms.get(group.module)) for group in graph.groups}
    levels = {group.name: group.level for group in graph.groups}
    widths = {name: _width(label) for name, label in labels.items()}
    forward = [(one, other) for one, other in graph.edges if levels[one] < levels[other]]
    back = [(one, other) for one, other in graph.edges if levels[one] >= levels[other]]
    layout = laid_out(levels, widths, forward)
    figure = go.Figure(layout={"template": template(theme)})
    _lines(figure, layout.paths, "", colour["muted"])
    sides = {name: (x + widths[name] / 2, y) for name, (x, y) in layout.boxes.items()}
    upwards = [_around(sides, a, b) for a, b in back]
    _lines(figure, upwards, "back to a module above", colour["muted"], "dot")
    scale = _scale(norms[g.module] for g in graph.groups if norms.get(g.module, 0) > 0)
    boxes = _Boxes(figure, layout.boxes, widths, labels, theme)
    ramp = _ramp(theme)
    kinds: dict[str, list[Group]] = {"": [], "no norm": [], "zero, or NaN": []}
    fills = {"no norm": colour["panel"], "zero, or NaN": colour["bad"]}
    for group in graph.groups:
        norm = norms.get(group.module)
        kinds["no norm" if norm is None else "" if norm > 0 else "zero, or NaN"].append(group)
    for kind, groups in kinds.items():
        own = [fills[kind] if kind else over(ramp, _share(norms[g.module], scale)) for g in groups]
        frames = [
            colour["ink"] if g.module == chosen else colour["accent"] if g.module in found else None
            for g in groups
        ]
        words = [_words(g, norms.get(g.module)) for g in groups]
        boxes.add(groups, kind, own, words, frames)
    if kinds[""]:
        _colour_bar(figure, ramp, scale)
    if found and any(group.module in found for group in graph.groups):
        _key(
            figure,
            "found",
            {"symbol": "square-open", "color": colour["accent"], "line": {"width": 3}},
        )
    _marks(figure, graph, layout, widths, broken or {}, colour["bad"])
    height, width = _cut_off(figure, graph, layout, theme)
    width += 2 * ROW if back else 0
    _fit(figure, layout.width / 2, width, height, room)
    return Drawing(figure, int(width) + 8, int(height) + HEAD + 4)


def _ramp(theme: Theme) -> list[tuple[float, str]]:
    """Returns the colour scale of the norms: position in 0 to 1, colour."""
    colour = tokens()[theme]
    return [
        (stop, over([(0, colour["panel"]), (1, colour[name])], SOFT[theme]))
        for stop, name in ((0.0, "data"), (0.5, "forward"), (1.0, "collective"))
    ]


def _fit(figure: go.Figure, middle: float, width: float, height: float, room: int) -> None:
    """Axes in pixels, around the middle of the boxes."""
    shown = max(width, room)
    figure.update_layout(
        margin={"l": 4, "r": 4, "t": HEAD, "b": 4},
        dragmode="pan",
        barmode="overlay",
        height=int(height) + HEAD + 4,
        barcornerradius=4,
        uirevision=f"{width:.0f} {height:.0f}",
        legend={"y": 1 - 40 / (height + HEAD), "yref": "container", "yanchor": "top"},
    )
    figure.update_xaxes(visible=False, range=[middle - shown / 2, middle + shown / 2])
    figure.update_yaxes(visible=False, range=[height, 0])


class _Boxes:
    """Boxes with words in them: horizontal bars, which can be pointed at all over."""

    def __init__(
        self,
        figure: go.Figure,
        places: Mapping[str, Point],
        widths: Mapping[str, float],
        labels: Mapping[str, str],
        theme: Theme,
    ) -> None:
        self._figure = figure
        self._places = places
        self._widths = widths
        self._labels = labels
        self._colour = tokens()[theme]

    def add(
        self,
        groups: Sequence[Group],
        name: str,
        fills: Sequence[str],
        words: Sequence[str],
        frames: Sequence[str | None],
    ) -> None:
        """Those of one kind, with an entry in the legend where it has a name."""
        if not groups:
            return
        if name:
            edge = {"width": 1, "color": frames[0] or self._colour["muted"]}
            _key(
                self._figure,
                name,
                {"symbol": "square", "color": fills[0], "size": 12, "line": edge},
            )
        inks = (self._colour["ink"], "#000000", "#ffffff")
        self._figure.add_bar(
            orientation="h",
            base=[self._places[g.name][0] - self._widths[g.name] / 2 for g in groups],
            x=[self._widths[g.name] for g in groups],
            y=[self._places[g.name][1] for g in groups],
            width=BOX,
            name=name,
            showlegend=False,
            text=[self._labels[g.name] for g in groups],
            textposition="inside",
            insidetextanchor="middle",
            constraintext="none",
            textangle=0,
            insidetextfont={"size": 12, "color": [readable(fill, inks) for fill in fills]},
            customdata=[g.module for g in groups],
            hovertext=list(words),
            hoverinfo="text",
            marker={
                "color": list(fills),
                "line": {
                    "color": [frame or self._colour["muted"] for frame in frames],
                    "width": [3 if frame else 0.5 for frame in frames],
                },
            },
        )


def _label(group: Group, norm: float | None) -> str:
    name = group.module
    if len(name) > MAX_LENGTH:
        end = name[-MAX_LENGTH:]
        name = "\N{HORIZONTAL ELLIPSIS}" + end[end.find(".") + 1 :]
    part = f" ({group.part}/{group.parts})" if group.parts > 1 else ""
    value = "" if norm is None else f" \N{MIDDLE DOT} {float(f'{norm:.2g}'):g}"
    return escaped(name) + part + value


def _width(label: str) -> float:
    return round(CHARACTER * len(label)) + 20


def _words(group: Group, norm: float | None) -> str:
    kinds = [f"{count} \N{MULTIPLICATION SIGN} {kind}" for kind, count in group.kinds[:LISTED]]
    more = len(group.kinds) - LISTED
    of = f", part {group.part} of {group.parts}" if group.parts > 1 else ""
    lines = [f"<b>{escaped(group.module)}</b>{of}", f"{group.nodes} nodes", *kinds]
    if more > 0:
        lines.append(f"and {more} more kinds")
    if norm is not None:
        lines.append(f"gradient norm {units.number(norm)} of {len(group.parameters)} parameters")
    return "<br>".join(lines)


def _lines(
    figure: go.Figure, paths: Sequence[Sequence[Point]], name: str, ink: str, dash: str = "solid"
) -> None:
    if not paths:
        return
    figure.add_scatter(
        x=[x for path in paths for x in (*(x for x, _ in path), None)],
        y=[y for path in paths for y in (*(y for _, y in path), None)],
        mode="lines",
        hoverinfo="skip",
        showlegend=bool(name),
        name=name,
        line={"width": 1, "color": ink, "dash": dash},
    )


def _around(sides: Mapping[str, Point], one: str, other: str) -> list[Point]:
    """An edge back up, from the right side of a box to that of another, past those between."""
    (x0, y0), (x1, y1) = sides[one], sides[other]
    low, high = min(y0, y1), max(y0, y1)
    most = max(x for x, y in sides.values() if low <= y <= high) + ROW / 2
    return [(x0, y0), (most, y0 - ROW / 4), (most, y1 + ROW / 4), (x1, y1)]


def _scale(norms: Iterable[float]) -> tuple[float, float]:
    """Returns log10 of the norms at both ends of the colour scale."""
    logs = [float(np.log10(norm)) for norm in norms if np.isfinite(norm)]
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)
    if high - low < MIN_DECADES:
        low, high = (low + high - MIN_DECADES) / 2, (low + high + MIN_DECADES) / 2
    return low, high


def _share(norm: float, scale: tuple[float, float]) -> float:
    low, high = scale
    return float(np.clip((np.log10(norm) - low) / (high - low), 0, 1))


def _colour_bar(
    figure: go.Figure, ramp: Sequence[tuple[float, str]], scale: tuple[float, float]
) -> None:
    low, high = scale
    ticks = list(range(int(np.ceil(low)), int(np.floor(high)) + 1))
    ticks = ticks[:: max(1, len(ticks) // 6)]
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
                **colour_bar("gradient norm", **powers(ticks)),
                "orientation": "h",
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
    figure: go.Figure,
    graph: Graph,
    layout: Layout,
    widths: Mapping[str, float],
    broken: Mapping[str, str],
    ink: str,
) -> None:
    """Of modules in which a gradient ends: at the left side of the first of their boxes."""
    marked = [g for g in graph.groups if g.module in broken and g.part == 1]
    if not marked:
        return
    figure.add_scatter(
        x=[layout.boxes[g.name][0] - widths[g.name] / 2 for g in marked],
        y=[layout.boxes[g.name][1] for g in marked],
        mode="markers",
        name="a gradient ends here",
        customdata=[g.module for g in marked],
        hovertext=[broken[g.module] for g in marked],
        hoverinfo="text",
        marker={"symbol": "x", "size": 12, "color": ink, "line": {"width": 1, "color": "white"}},
    )


def _cut_off(figure: go.Figure, graph: Graph, layout: Layout, theme: Theme) -> tuple[float, float]:
    """Boxes of what gets no gradient, in rows below; the drawing's height and width with them."""
    colour = tokens()[theme]
    names = {name: name or "the model itself" for name in graph.cut_off}
    groups = [Group(name, 0, (), (), place // MAX_ACROSS, name) for place, name in enumerate(names)]
    if not groups:
        return layout.height, layout.width
    labels = {name: f"\N{BALLOT X} {escaped(words[-MAX_LENGTH:])}" for name, words in names.items()}
    widths = {name: _width(label) for name, label in labels.items()}
    own = laid_out({g.name: g.level for g in groups}, widths, ())
    shift, down = (layout.width - own.width) / 2, layout.height + ROW / 2
    places = {name: (x + shift, y + down) for name, (x, y) in own.boxes.items()}
    boxes = _Boxes(figure, places, widths, labels, theme)
    words = [
        f"<b>{escaped(names[name])}</b><br>{CAUSES[cause]}" for name, cause in graph.cut_off.items()
    ]
    fills, frames = [colour["panel"]] * len(groups), [colour["bad"]] * len(groups)
    boxes.add(groups, "cut off", fills, words, frames)
    return down + own.height, max(layout.width, own.width)
