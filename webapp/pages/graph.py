"""The autograd graph of a step, by module, the torch.fx graph beside it, where it is broken."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp import graph_charts, units
from lanescope.webapp.analysis.autograd_graph import graph_nodes, graph_of
from lanescope.webapp.analysis.fx_graph import fx_graph_of, fx_graphs, fx_nodes, tied
from lanescope.webapp.analysis.module_graph import Graph, group_names, matches
from lanescope.webapp.colours import Theme
from lanescope.webapp.pages import graph_parts, ids, parts
from lanescope.webapp.pages.context import Context, Page
from lanescope.webapp.run import Run

READABLE = 60
"""Modules that can be read at once; of more, the tree is collapsed at first."""
DEEPEST = 12


def layout(context: Context) -> Component:
    """Controls, the drawings, what they say."""
    run = context.run
    lead = (
        "What handed gradients to what in the first backward of step 0, from the loss down. Click "
        "a module to open it; choosing a level closes all. Drag to move; the buttons above it zoom."
    )
    ranks = [rank for rank in run.ranks if run.counts_of(rank)["node"]]
    if not ranks:
        return parts.page(
            "Graph",
            lead,
            parts.empty(
                "This run holds no autograd graph.",
                "A run holds that of the first backward of step 0, of up to 20,000 nodes. One "
                "whose recording began later, or that ran no backward, has none.",
            ),
        )
    modules = set(graph_nodes(run, ranks[0])["module"])
    deepest = max(str(module).count(".") + 1 for module in modules)
    levels = [{"label": f"{n} of {deepest} levels", "value": n} for n in range(1, deepest + 1)]
    both = any(fx_graphs(run, rank) for rank in ranks)
    return parts.page(
        "Graph",
        lead,
        html.Div(
            [
                html.Label("modules", htmlFor=ids.GRAPH_DEPTH),
                dcc.Dropdown(
                    levels, _depth(modules, deepest), id=ids.GRAPH_DEPTH,
                    clearable=False, searchable=False,
                ),
                html.Label("rank", htmlFor=ids.GRAPH_RANK),
                dcc.Dropdown(
                    [{"label": f"rank {rank}", "value": rank} for rank in ranks], ranks[0],
                    id=ids.GRAPH_RANK, clearable=False, searchable=False,
                ),
                html.Label("find", htmlFor=ids.GRAPH_FIND),
                html.Div(
                    dcc.Input(
                        id=ids.GRAPH_FIND, type="search", value="", debounce=0.3,
                        placeholder="module, operator or parameter",
                    ),
                    className="find-box",
                ),
                *([html.Label("torch.fx graph", htmlFor=ids.GRAPH_FX)] if both else []),
                html.Div(
                    dcc.Dropdown(
                        _offered(run, ranks[0]), _first(run, ranks[0]), id=ids.GRAPH_FX,
                        clearable=False, searchable=False,
                    ),
                    hidden=not both,
                ),
            ],
            className="controls",
        ),
        dcc.Store(id=ids.GRAPH_OPENED, data=[]),
        html.Div(id=ids.GRAPH_CUT),
        html.Div(
            [
                html.Div(
                    [
                        html.P(id=ids.GRAPH_NOTE, className="muted"),
                        parts.graph(ids.GRAPH_CHART, height=640),
                    ]
                ),
                html.Div(
                    [
                        html.P(id=ids.GRAPH_FX_NOTE, className="muted"),
                        parts.graph(ids.GRAPH_FX_CHART, height=640),
                    ],
                    hidden=not both,
                ),
            ],
            className="split even" if both else "",
        ),
        html.Div(id=ids.GRAPH_TIES),
        html.Div(id=ids.GRAPH_BREAKS),
    )  # fmt: skip


def register(app: Dash, context: Context) -> None:
    """The drawings follow their controls, what is opened, what is looked for, and the theme."""
    run = context.run

    @app.callback(
        Output(ids.GRAPH_OPENED, "data"),
        Input(ids.GRAPH_CHART, "clickData"),
        Input(ids.GRAPH_FX_CHART, "clickData"),
        Input(ids.GRAPH_DEPTH, "value"),
        State(ids.GRAPH_OPENED, "data"),
        prevent_initial_call=True,
    )
    def toggle(
        click: dict[str, Any] | None, fx_click: dict[str, Any] | None, _: int, opened: list[str]
    ) -> list[str]:
        if ctx.triggered_id == ids.GRAPH_DEPTH:
            return []
        clicked = fx_click if ctx.triggered_id == ids.GRAPH_FX_CHART else click
        name = (clicked or {}).get("points", [{}])[0].get("customdata")
        return toggled(opened, name) if isinstance(name, str) else opened

    @app.callback(
        Output(ids.GRAPH_CHART, "figure"),
        Output(ids.GRAPH_CHART, "style"),
        Output(ids.GRAPH_NOTE, "children"),
        Input(ids.GRAPH_DEPTH, "value"),
        Input(ids.GRAPH_RANK, "value"),
        Input(ids.GRAPH_OPENED, "data"),
        Input(ids.GRAPH_FIND, "value"),
        Input(ids.THEME, "data"),
    )
    def draw(
        depth: int, rank: int, opened: list[str], text: str | None, theme: Theme | None
    ) -> tuple[go.Figure, dict[str, str], str]:
        graph = graph_of(run, rank, depth, opened)
        assert graph is not None, "only ranks with a graph are offered"
        found = matches(graph_nodes(run, rank), text or "", depth, opened)
        figure = graph_charts.graph_figure(
            graph, graph_parts.norms(run, rank, graph), theme or "light", found,
            graph_parts.broken(run, rank, graph, depth, opened),
        )  # fmt: skip
        return figure, _height(graph), graph_parts.note(graph, "autograd", found, text or "")

    @app.callback(
        Output(ids.GRAPH_CUT, "children"),
        Output(ids.GRAPH_BREAKS, "children"),
        Output(ids.GRAPH_FX, "options"),
        Output(ids.GRAPH_FX, "value"),
        Input(ids.GRAPH_RANK, "value"),
        State(ids.GRAPH_FX, "value"),
    )
    def about(rank: int, known: str | None) -> tuple[Any, Any, Any, Any]:
        graph = graph_of(run, rank, 1)
        assert graph is not None, "only ranks with a graph are offered"
        beside = [*graph_parts.break_table(context, rank), *graph_parts.fx_words(run, rank)]
        kept = no_update if known in fx_graphs(run, rank) else _first(run, rank)
        return graph_parts.cut(context, rank, graph), beside, _offered(run, rank), kept

    @app.callback(
        Output(ids.GRAPH_FX_CHART, "figure"),
        Output(ids.GRAPH_FX_CHART, "style"),
        Output(ids.GRAPH_FX_NOTE, "children"),
        Input(ids.GRAPH_FX, "value"),
        Input(ids.GRAPH_DEPTH, "value"),
        Input(ids.GRAPH_RANK, "value"),
        Input(ids.GRAPH_OPENED, "data"),
        Input(ids.GRAPH_FIND, "value"),
        Input(ids.THEME, "data"),
    )
    def draw_fx(
        name: str | None, depth: int, rank: int, opened: list[str], text: str | None,
        theme: Theme | None,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        if name not in fx_graphs(run, rank):
            return no_update, no_update, no_update
        graph = fx_graph_of(run, rank, name, depth, opened)
        found = matches(fx_nodes(run, rank, name), text or "", depth, opened)
        norms = graph_parts.norms(run, rank, graph)
        figure = graph_charts.graph_figure(graph, norms, theme or "light", found)
        return figure, _height(graph), graph_parts.note(graph, "torch.fx", found, text or "")

    @app.callback(
        Output(ids.GRAPH_TIES, "children"),
        Input(ids.GRAPH_FX, "value"),
        Input(ids.GRAPH_RANK, "value"),
    )
    def ties(name: str | None, rank: int) -> list[Component]:
        if name not in fx_graphs(run, rank):
            return []
        norms = graph_parts.norms(run, rank, fx_graph_of(run, rank, name, None))
        lead = html.P(
            "Tied by module and line: the autograd nodes that each call became.", className="muted"
        )
        table = graph_parts.tie_table(tied(run, rank, name), norms)
        return [html.H2("From torch.fx to autograd"), lead, table]


def toggled(opened: list[str], name: str) -> list[str]:
    """What is open after a click on a module: it, or, where it was, nothing of it any more."""
    if name in opened:
        return [one for one in opened if one != name and not one.startswith(f"{name}.")]
    return [*opened, name]


def _height(graph: Graph) -> dict[str, str]:
    rows = max((g.level for g in graph.groups), default=0) + 2
    return {"height": f"{min(1800, max(420, 40 * rows))}px"}


def _offered(run: Run, rank: int) -> list[dict[str, str]]:
    return [
        {"label": f"{name} \N{MIDDLE DOT} {units.count(len(fx_nodes(run, rank, name)))} nodes",
         "value": name}
        for name in fx_graphs(run, rank)
    ]  # fmt: skip


def _first(run: Run, rank: int) -> str | None:
    return next(iter(fx_graphs(run, rank)), None)


def _depth(modules: set[str], deepest: int) -> int:
    """The deepest cut that leaves a readable number of modules."""
    for depth in range(min(deepest, DEEPEST), 1, -1):
        if len(set(group_names(modules, depth))) <= READABLE:
            return depth
    return 1


PAGE = Page("graph", "Graph", layout, register)
