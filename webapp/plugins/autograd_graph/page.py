"""The autograd graph of a step, by module, the torch.fx graph beside it, where it is broken."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from lanescope.webapp.plugins.autograd_graph import charts as graph_charts
from lanescope.webapp.plugins.autograd_graph import ids
from lanescope.webapp.plugins.autograd_graph import page_graph_parts as graph_parts
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes, graph_of
from lanescope.webapp.plugins.autograd_graph.fx_graph import fx_graph_of, fx_graphs, fx_nodes, tied
from lanescope.webapp.plugins.autograd_graph.module_graph import matches
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import ids as frame_ids
from lanescope.webapp.ui import states, widgets
from lanescope.webapp.ui.colours import Theme
from lanescope.webapp.ui.context import Context

_READABLE = 60
"""Boxes that can be read at once; of more, the tree is collapsed at first."""
_MAX_DEPTH = 12


def layout(context: Context) -> Component:
    """Controls, the drawings, what they say."""
    run = context.run
    lead = (
        "The modules and autograd nodes of the first recorded backward, from the loss down. Click "
        "a module to open or close it; choosing a level closes all."
    )
    ranks = [rank for rank in run.ranks if run.counts_of(rank)["node"]]
    if not ranks:
        return widgets.page(
            "Graph",
            lead,
            states.empty(
                "This run holds no autograd graph.",
                "The graph of the first recorded backward is kept if it has up to 20,000 nodes: "
                "record a step that runs backward.",
            ),
        )
    modules = set(graph_nodes(run, ranks[0])["module"])
    deepest = max(str(module).count(".") + 1 for module in modules)
    levels = [{"label": f"{n} of {deepest} levels", "value": n} for n in range(1, deepest + 1)]
    both = any(fx_graphs(run, rank) for rank in ranks)
    return widgets.page(
        "Graph",
        lead,
        widgets.controls(
            widgets.choice("modules", ids.GRAPH_DEPTH, levels, _depth(run, ranks[0], deepest)),
            widgets.choice("rank", ids.GRAPH_RANK, widgets.rank_options(ranks)),
            widgets.find_box(ids.GRAPH_FIND, "module, operator or parameter"),
            widgets.controls(
                widgets.choice("torch.fx graph", ids.GRAPH_FX, _offered(run, ranks[0])),
                hidden=not both,
            ),
        ),
        dcc.Store(id=ids.GRAPH_OPENED, data=[]),
        dcc.Store(id=ids.GRAPH_CHOSEN, data=""),
        dcc.Store(id=ids.GRAPH_DRAWING),
        dcc.Store(id=ids.GRAPH_FX_DRAWING),
        html.Div(id=ids.GRAPH_CUT),
        html.Div(
            [
                html.Div(id=ids.GRAPH_ABOUT, **widgets.attributes(aria_live="polite")),
                html.Button("Close", id=ids.GRAPH_CLOSE, hidden=True),
            ],
            className="graph-about",
        ),
        html.Div(
            [
                _drawing(ids.GRAPH_NOTE, ids.GRAPH_CHART),
                _drawing(ids.GRAPH_FX_NOTE, ids.GRAPH_FX_CHART, hidden=not both),
            ],
            className="split even" if both else "",
        ),
        html.Div(states.loading("Tying the nodes of torch.fx to autograd"), id=ids.GRAPH_TIES),
        html.Div(id=ids.GRAPH_BREAKS),
    )


def _drawing(note: str, chart: str, *, hidden: bool = False) -> Component:
    drawn = html.Div(widgets.graph(chart, height=640, what="the graph"), className="wide-graph")
    return html.Div([html.P(id=note, className="muted"), drawn], hidden=hidden)


def register(app: Dash, context: Context) -> None:
    """Redraws the graphs after a change of controls, open modules, search text or theme."""
    _register_choice(app, context)
    _register_autograd(app, context)
    _register_fx(app, context.run)
    connect: Any = app.clientside_callback  # Dash leaves it untyped
    for chart, drawing in (
        (ids.GRAPH_CHART, ids.GRAPH_DRAWING),
        (ids.GRAPH_FX_CHART, ids.GRAPH_FX_DRAWING),
    ):
        connect(
            ClientsideFunction("lanescope", "placed"),
            Output(chart, "figure"),
            Output(chart, "style"),
            Input(drawing, "data"),
        )


def _register_choice(app: Dash, context: Context) -> None:
    """Opens and closes modules, and describes the selected one."""
    run = context.run

    @app.callback(
        Output(ids.GRAPH_OPENED, "data"),
        Output(ids.GRAPH_CHOSEN, "data"),
        Input(ids.GRAPH_CHART, "clickData"),
        Input(ids.GRAPH_FX_CHART, "clickData"),
        Input(ids.GRAPH_CLOSE, "n_clicks"),
        Input(ids.GRAPH_DEPTH, "value"),
        Input(ids.GRAPH_RANK, "value"),
        State(ids.GRAPH_OPENED, "data"),
        State(ids.GRAPH_CHOSEN, "data"),
        prevent_initial_call=True,
    )
    def toggle(
        click: dict[str, Any] | None,
        fx_click: dict[str, Any] | None,
        _: int,
        depth: int,
        rank: int,
        opened: list[str],
        chosen: str,
    ) -> tuple[Any, Any]:
        if ctx.triggered_id == ids.GRAPH_DEPTH:
            return [], ""
        if ctx.triggered_id == ids.GRAPH_RANK:
            return no_update, ""
        if ctx.triggered_id == ids.GRAPH_CLOSE:
            around = graph_parts.open_around(opened, chosen)
            return toggled(opened, around), around
        clicked = fx_click if ctx.triggered_id == ids.GRAPH_FX_CHART else click
        name = (clicked or {}).get("points", [{}])[0].get("customdata")
        if not isinstance(name, str):
            return no_update, no_update
        if name in opened or graph_parts.holds_others(run, rank, name, depth):
            return toggled(opened, name), name
        return no_update, name

    @app.callback(
        Output(ids.GRAPH_ABOUT, "children"),
        Output(ids.GRAPH_CLOSE, "children"),
        Output(ids.GRAPH_CLOSE, "hidden"),
        Input(ids.GRAPH_CHOSEN, "data"),
        Input(ids.GRAPH_OPENED, "data"),
        State(ids.GRAPH_RANK, "value"),
        State(ids.GRAPH_DEPTH, "value"),
    )
    def about_chosen(
        chosen: str, opened: list[str], rank: int, depth: int
    ) -> tuple[list[Component], str, bool]:
        around = graph_parts.open_around(opened, chosen)
        words = graph_parts.module_facts(context, rank, chosen, depth, opened)
        return words, f"Close {around}", not around


def _register_autograd(app: Dash, context: Context) -> None:
    """Draws the autograd graph and its summary."""
    run = context.run

    @app.callback(
        Output(ids.GRAPH_DRAWING, "data"),
        Output(ids.GRAPH_NOTE, "children"),
        Input(ids.GRAPH_DEPTH, "value"),
        Input(ids.GRAPH_RANK, "value"),
        Input(ids.GRAPH_OPENED, "data"),
        Input(ids.GRAPH_FIND, "value"),
        Input(frame_ids.THEME, "data"),
        Input(ids.GRAPH_CHOSEN, "data"),
    )
    def draw(
        depth: int, rank: int, opened: list[str], text: str | None, theme: Theme | None, chosen: str
    ) -> tuple[dict[str, Any], str]:
        graph = graph_of(run, rank, depth, opened)
        assert graph is not None, "only ranks with a graph are offered"
        found = matches(graph_nodes(run, rank), text or "", depth, opened)
        drawing = graph_charts.graph_drawing(
            graph,
            graph_parts.norms(run, rank, graph),
            theme or "light",
            ids.GRAPH_CHART,
            found,
            graph_parts.broken(run, rank, graph, depth, opened),
            chosen,
        )
        return drawing, graph_parts.graph_note(graph, "autograd", found, text or "")

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
        graphs = fx_graphs(run, rank)
        kept = no_update if known in graphs else next(iter(graphs), None)
        return (
            graph_parts.gradient_breaks_note(context, rank, graph),
            beside,
            _offered(run, rank),
            kept,
        )


def _register_fx(app: Dash, run: Run) -> None:
    """The torch.fx graph, and which of its calls became which autograd nodes."""

    @app.callback(
        Output(ids.GRAPH_FX_DRAWING, "data"),
        Output(ids.GRAPH_FX_NOTE, "children"),
        Input(ids.GRAPH_FX, "value"),
        Input(ids.GRAPH_DEPTH, "value"),
        Input(ids.GRAPH_RANK, "value"),
        Input(ids.GRAPH_OPENED, "data"),
        Input(ids.GRAPH_FIND, "value"),
        Input(frame_ids.THEME, "data"),
        Input(ids.GRAPH_CHOSEN, "data"),
    )
    def draw_fx(
        name: str | None,
        depth: int,
        rank: int,
        opened: list[str],
        text: str | None,
        theme: Theme | None,
        chosen: str,
    ) -> tuple[Any, Any]:
        if name not in fx_graphs(run, rank):
            return no_update, no_update
        graph = fx_graph_of(run, rank, name, depth, opened)
        found = matches(fx_nodes(run, rank, name), text or "", depth, opened)
        norms = graph_parts.norms(run, rank, graph)
        drawing = graph_charts.graph_drawing(
            graph, norms, theme or "light", ids.GRAPH_FX_CHART, found, chosen=chosen
        )
        return drawing, graph_parts.graph_note(graph, "torch.fx", found, text or "")

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
    """Returns what remains open after a click on a module: it, or, where it was, nothing of it any
    more."""
    if name in opened:
        return [one for one in opened if one != name and not one.startswith(f"{name}.")]
    return [*opened, name]


def _offered(run: Run, rank: int) -> list[dict[str, str]]:
    return [
        {
            "label": f"{name} \N{MIDDLE DOT} {units.count(len(fx_nodes(run, rank, name)))} nodes",
            "value": name,
        }
        for name in fx_graphs(run, rank)
    ]


def _depth(run: Run, rank: int, deepest: int) -> int:
    """The deepest cut that leaves a readable number of boxes."""
    for depth in range(2, min(deepest, _MAX_DEPTH) + 1):
        graph = graph_of(run, rank, depth)
        if graph is None or len(graph.groups) > _READABLE:
            return depth - 1
    return max(1, min(deepest, _MAX_DEPTH))
