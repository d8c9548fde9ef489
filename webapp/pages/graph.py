"""The autograd graph of a step, by module, and what is cut off from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, html
from dash.development.base_component import Component

from lanescope.webapp import graph_charts, units
from lanescope.webapp.analysis.autograd_graph import CAUSES, OUTSIDE, Graph, graph_of
from lanescope.webapp.analysis.layer_map import backward_link
from lanescope.webapp.analysis.learning import gradient_rows
from lanescope.webapp.colours import Theme
from lanescope.webapp.pages import ids, parts
from lanescope.webapp.pages.context import Context, Page

READABLE = 40
"""Modules that can be read at once; of more, the tree is collapsed at first."""
DEEPEST = 12


def layout(context: Context) -> Component:
    """Controls, the drawing, what it says."""
    run = context.run
    lead = (
        "What handed gradients to what in the first backward of step 0, from the loss down. Click "
        "a module to open it; choosing a level closes all."
    )
    ranks = [rank for rank in run.ranks if run.counts_of(rank)["node"]]
    if not ranks:
        return parts.page(
            "Graph",
            lead,
            parts.empty(
                "This run holds no autograd graph.",
                "The native engine records that of the first backward of step 0, of up to 20,000 "
                "nodes.",
            ),
        )
    whole = graph_of(run, ranks[0])
    assert whole is not None
    deepest = max((g.name.count(".") + 1 for g in whole.groups), default=1)
    levels = [{"label": f"{n} of {deepest} levels", "value": n} for n in range(1, deepest + 1)]
    return parts.page(
        "Graph",
        lead,
        html.Div(
            [
                html.Label("modules", htmlFor=ids.GRAPH_DEPTH),
                dcc.Dropdown(
                    levels, _depth(context, ranks[0], deepest), id=ids.GRAPH_DEPTH,
                    clearable=False, searchable=False,
                ),
                html.Label("rank", htmlFor=ids.GRAPH_RANK),
                dcc.Dropdown(
                    [{"label": f"rank {rank}", "value": rank} for rank in ranks], ranks[0],
                    id=ids.GRAPH_RANK, clearable=False, searchable=False,
                ),
            ],
            className="controls",
        ),
        dcc.Store(id=ids.GRAPH_OPENED, data=[]),
        html.P(id=ids.GRAPH_NOTE, className="muted"),
        html.Div(id=ids.GRAPH_CUT),
        parts.graph(ids.GRAPH_CHART, height=640),
    )  # fmt: skip


def register(app: Dash, context: Context) -> None:
    """The drawing follows its controls, what is opened, and the theme."""

    @app.callback(
        Output(ids.GRAPH_OPENED, "data"),
        Input(ids.GRAPH_CHART, "clickData"),
        Input(ids.GRAPH_DEPTH, "value"),
        State(ids.GRAPH_OPENED, "data"),
        prevent_initial_call=True,
    )
    def toggle(click: dict[str, Any] | None, _: int, opened: list[str]) -> list[str]:
        if ctx.triggered_id == ids.GRAPH_DEPTH:
            return []
        name = (click or {}).get("points", [{}])[0].get("customdata")
        return toggled(opened, name) if isinstance(name, str) else opened

    @app.callback(
        Output(ids.GRAPH_CHART, "figure"),
        Output(ids.GRAPH_CHART, "style"),
        Output(ids.GRAPH_NOTE, "children"),
        Output(ids.GRAPH_CUT, "children"),
        Input(ids.GRAPH_DEPTH, "value"),
        Input(ids.GRAPH_RANK, "value"),
        Input(ids.GRAPH_OPENED, "data"),
        Input(ids.THEME, "data"),
    )
    def draw(
        depth: int, rank: int, opened: list[str], theme: Theme | None
    ) -> tuple[go.Figure, dict[str, str], str, list[Component]]:
        graph = graph_of(context.run, rank, depth, opened)
        assert graph is not None, "only ranks with a graph are offered"
        figure = graph_charts.graph_figure(graph, norms(context, rank, graph), theme or "light")
        rows = max((g.level for g in graph.groups), default=0) + 2
        height = {"height": f"{min(1800, max(420, 40 * rows))}px"}
        return figure, height, _note(graph), _cut(context, rank, graph)


def toggled(opened: list[str], name: str) -> list[str]:
    """What is open after a click on a module: it, or, where it was, nothing of it any more."""
    if name in opened:
        return [one for one in opened if one != name and not one.startswith(f"{name}.")]
    return [*opened, name]


def norms(context: Context, rank: int, graph: Graph) -> dict[str, float]:
    """Group -> norm of the gradient of its parameters at the graph's step."""
    rows = gradient_rows(context.run)
    rows = rows[(rows["step"] == graph.step) & ~rows["missing"]]
    # Shards stand with the lowest rank that holds some.
    mine = rows[rows["rank"] == rank]
    known = dict(zip(rows["parameter"], rows["norm"], strict=True))
    known |= dict(zip(mine["parameter"], mine["norm"], strict=True))
    found = {}
    for group in graph.groups:
        squares = [known[name] ** 2 for name in group.parameters if name in known]
        if squares:
            found[group.name] = float(np.sqrt(sum(squares)))
    return found


def _note(graph: Graph) -> str:
    modules = sum(group.name != OUTSIDE for group in graph.groups)
    return (
        f"{units.count(graph.nodes)} autograd nodes in {units.count(modules)} modules; "
        f"{units.count(sum(graph.edges.values()))} edges between them."
    )


def _cut(context: Context, rank: int, graph: Graph) -> list[Component]:
    if not graph.cut_off:
        return []
    items = [
        html.Li(
            [
                html.B(name or "the model itself"), f" {CAUSES[cause]}. ",
                dcc.Link(
                    "Step on the timeline",
                    href=context.address(backward_link(context.run, rank, name, graph.step)),
                ),
            ]
        )
        for name, cause in graph.cut_off.items()
    ]  # fmt: skip
    words = "Trainable modules that get no gradient from this backward:"
    return [
        parts.note([words, html.Ul(items, style={"margin": 0, "paddingLeft": "1.4em"})], "warn")
    ]


def _depth(context: Context, rank: int, deepest: int) -> int:
    """The deepest cut that leaves a readable number of modules."""
    for depth in range(min(deepest, DEEPEST), 1, -1):
        graph = graph_of(context.run, rank, depth)
        if graph is not None and len(graph.groups) <= READABLE:
            return depth
    return 1


PAGE = Page("graph", "Graph", layout, register)
