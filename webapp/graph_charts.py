"""The figure of an autograd graph by module. No Dash, no analysis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from lanescope.webapp.analysis.autograd_graph import CAUSES
from lanescope.webapp.analysis.module_graph import Graph, Group
from lanescope.webapp.colours import Theme, tokens
from lanescope.webapp.theme import template

SWEEPS = 4
"""Times that the boxes of a level are put in the order of what they hang on."""
BEND = 0.09
"""How far an edge that passes a level by leaves the straight line, per level passed."""
LISTED = 6


def graph_figure(
    graph: Graph, norms: Mapping[str, float], theme: Theme,
    found: Collection[str] = (), broken: Mapping[str, str] | None = None,
) -> go.Figure:  # fmt: skip
    """Modules from the loss downwards, coloured by the norm of their gradient in logarithms.

    `norms`: group -> norm of the gradient of its parameters. Groups without parameters are grey,
    modules that are cut off are crosses in the last row. `found` are framed; at those in `broken`
    stands a mark, with its words. `customdata` is the module's path.
    """
    colour = tokens()[theme]
    figure = go.Figure(layout={"template": template(theme), "uirevision": "kept"})
    figure.update_layout(dragmode="pan", margin={"l": 8, "r": 8, "t": 8, "b": 8})
    places = _places(graph)
    _edges(figure, graph, places, colour["muted"])
    with_norm = [g for g in graph.groups if norms.get(g.name, 0) > 0]
    logs = [float(np.log10(norms[g.name])) for g in with_norm]
    low, high = (min(logs), max(logs)) if logs else (0.0, 1.0)
    if high - low < 2:
        low, high = (low + high) / 2 - 1, (low + high) / 2 + 1
    ticks = list(range(int(np.ceil(low)), int(np.floor(high)) + 1))
    rest = [g for g in graph.groups if g not in with_norm]
    zero = [g for g in rest if g.name in norms]
    kinds: tuple[tuple[list[Group], str, dict[str, Any]], ...] = (
        (
            with_norm,
            "with parameters",
            {
                "color": logs, "cmin": low, "cmax": high, "showscale": bool(logs),
                "colorscale": [[0, colour["data"]], [0.5, colour["forward"]],
                               [1, colour["collective"]]],
                "colorbar": {
                    "title": {"text": "gradient norm", "side": "right", "font": {"size": 12}},
                    "tickvals": ticks, "ticktext": [f"10<sup>{tick}</sup>" for tick in ticks],
                    "thickness": 10, "outlinewidth": 0,
                },
            },
        ),
        ([g for g in rest if g not in zero], "without", {"color": colour["line"]}),
        (zero, "gradient of zero, or NaN", {"color": colour["bad"], "symbol": "square"}),
    )  # fmt: skip
    for groups, name, marker in kinds:
        if groups:
            _boxes(figure, groups, places, norms, name, marker, colour["muted"])
    for names, symbol, size, words in (
        ([name for name in found if name in places], "circle-open", 26, {}),
        ([name for name in broken or {} if name in places], "diamond-tall", 11, broken or {}),
    ):
        if names:
            figure.add_scatter(
                x=[places[name][0] - (0.02 if words else 0.0) for name in names],
                y=[places[name][1] for name in names],
                mode="markers",
                name="a gradient ends here" if words else "found",
                customdata=names,
                hovertext=[words.get(name, name) for name in names],
                hoverinfo="text",
                marker={
                    "symbol": symbol, "size": size, "color": colour["bad" if words else "accent"],
                    "line": {"width": 0 if words else 3},
                },
            )  # fmt: skip
    if graph.cut_off:
        bottom = max((g.level for g in graph.groups), default=0) + 1
        count = len(graph.cut_off)
        figure.add_scatter(
            x=[(position + 1) / (count + 1) for position in range(count)],
            y=[bottom] * count,
            mode="markers+text",
            name="cut off",
            text=[name or "the model itself" for name in graph.cut_off],
            textposition="bottom center",
            marker={"symbol": "x", "size": 11, "color": colour["bad"]},
            hovertext=[
                f"<b>{name}</b><br>{CAUSES[cause]}" for name, cause in graph.cut_off.items()
            ],
            hoverinfo="text",
        )
    figure.update_xaxes(visible=False, range=[-0.02, 1.12])
    last = max((place[1] for place in places.values()), default=0) + bool(graph.cut_off)
    figure.update_yaxes(visible=False, range=[last + 0.7, -0.5])
    return figure


def _boxes(
    figure: go.Figure, groups: list[Group], places: Mapping[str, tuple[float, float]],
    norms: Mapping[str, float], name: str, marker: Mapping[str, Any], outline: str,
) -> None:  # fmt: skip
    figure.add_scatter(
        x=[places[g.name][0] for g in groups],
        y=[places[g.name][1] for g in groups],
        mode="markers+text",
        name=name,
        text=[f"  {_label(g.name, places)}" for g in groups],
        textposition="middle right",
        customdata=[g.name for g in groups],
        hovertext=[_words(g, norms.get(g.name)) for g in groups],
        hoverinfo="text",
        marker={
            "size": [10 + 3 * float(np.log2(g.nodes + 1)) for g in groups],
            "line": {"width": 1, "color": outline},
            "opacity": 1,
            **marker,
        },
    )


def _label(name: str, drawn: Collection[str]) -> str:
    """A module's path; without that of the innermost module around it that is drawn too."""
    around = name
    while around := around.rpartition(".")[0]:
        if around in drawn:
            return name[len(around) :]
    return name


def _words(group: Group, norm: float | None) -> str:
    kinds = [f"{count} \N{MULTIPLICATION SIGN} {kind}" for kind, count in group.kinds[:LISTED]]
    more = len(group.kinds) - LISTED
    lines = [f"<b>{group.name}</b>", f"{group.nodes} nodes", *kinds]
    if more > 0:
        lines.append(f"and {more} more kinds")
    if norm is not None:
        lines.append(f"gradient norm {norm:.3g} of {len(group.parameters)} parameters")
    return "<br>".join(lines)


def _edges(
    figure: go.Figure, graph: Graph, places: Mapping[str, tuple[float, float]], ink: str
) -> None:
    for back in (False, True):
        xs: list[float | None] = []
        ys: list[float | None] = []
        for one, other in graph.edges:
            (x0, y0), (x1, y1) = places[one], places[other]
            if (y1 <= y0) != back:
                continue
            bend = BEND * max(0.0, min(abs(y1 - y0), 6.0) - 1) + (0.05 if back else 0.0)
            for t in np.linspace(0, 1, 2 if not bend else 12):
                xs.append(float(x0 + (x1 - x0) * t - bend * 4 * t * (1 - t) * 0.5))
                ys.append(float(y0 + (y1 - y0) * t))
            xs.append(None)
            ys.append(None)
        if xs:
            figure.add_scatter(
                x=xs, y=ys, mode="lines", hoverinfo="skip", showlegend=back,
                name="back to a module above", line={"width": 1, "color": ink,
                                                     "dash": "dot" if back else "solid"},
            )  # fmt: skip


def _places(graph: Graph) -> dict[str, tuple[float, float]]:
    """Where each group is drawn: its level down, and across near what it hangs on."""
    rows: dict[int, list[str]] = defaultdict(list)
    for group in graph.groups:
        rows[group.level].append(group.name)
    near: dict[str, list[str]] = defaultdict(list)
    for one, other in graph.edges:
        near[one].append(other)
        near[other].append(one)
    across = {g.name: 0.5 for g in graph.groups}
    for _ in range(SWEEPS):
        for names in rows.values():
            wish = {n: float(np.mean([across[o] for o in near[n]] or [0.5])) for n in names}
            names.sort(key=lambda name: wish[name])
            for position, name in enumerate(names):
                across[name] = (position + 1) / (len(names) + 1)
    return {g.name: (across[g.name], float(g.level)) for g in graph.groups}
