"""Texts beside the drawings of the Graph page: cut-off modules, breaks, links to torch.fx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from dash import dcc, html
from dash.development.base_component import Component

from lanescope.collector.format.names import FX_UNTRACEABLE
from lanescope.webapp.analysis.links import backward_link
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.plugins.autograd_graph import gradient_breaks
from lanescope.webapp.plugins.autograd_graph.autograd_graph import (
    NO_GRADIENT_CAUSES,
    graph_nodes,
    graph_of,
)
from lanescope.webapp.plugins.autograd_graph.charts import MAX_BOXES
from lanescope.webapp.plugins.autograd_graph.fx_graph import fx_graphs, refusals
from lanescope.webapp.plugins.autograd_graph.module_graph import OUTSIDE, Graph, group_names
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.ui import grids, widgets
from lanescope.webapp.ui.context import Context

_LISTED = 6
"""Kinds of nodes that are named of a module."""
MAX_ITEMS = 40
"""Cut-off modules that are listed, and operators at which a gradient ends."""
MAX_TIES = 5_000
"""Rows of the table of fx nodes."""


def norms(run: Run, rank: int, graph: Graph) -> dict[str, float]:
    """Returns module drawn -> norm of the gradient of its parameters at the graph's step."""
    rows = gradient_rows(run)
    rows = rows[(rows["step"] == graph.step) & ~rows["missing"]]
    # Shards stand with the lowest rank that holds some.
    mine = rows[rows["rank"] == rank]
    known = dict(zip(rows["parameter"], rows["norm"], strict=True))
    known |= dict(zip(mine["parameter"], mine["norm"], strict=True))
    found = {}
    for group in graph.groups:
        squares = [known[name] ** 2 for name in group.parameters if name in known]
        if squares:
            found[group.module] = float(np.sqrt(sum(squares)))
    return found


def broken(
    run: Run, rank: int, graph: Graph, depth: int | None, opened: list[str]
) -> dict[str, str]:
    """Returns drawn module -> text about its breaks; cut-off modules have a mark of their own."""
    drawn = {group.module for group in graph.groups}
    words: dict[str, str] = {}
    for one in gradient_breaks.breaks(run, rank):
        (name,) = group_names([one.module], depth, opened)
        if name not in drawn:
            continue
        line = f"{one.op} {gradient_breaks.BREAK_CAUSES[one.cause]}"
        words[name] = f"{words[name]}<br>{line}" if name in words else f"<b>{name}</b><br>{line}"
    return words


def graph_note(graph: Graph, kind: str, found: Mapping[str, int], text: str) -> str:
    """Returns how large a graph is, and what was found in it."""
    modules = len({group.module for group in graph.groups} - {OUTSIDE})
    words = (
        f"{units.count(graph.nodes)} {kind} nodes in {units.count(modules)} modules; "
        f"{units.count(sum(graph.edges.values()))} edges between them."
    )
    if len(graph.groups) > MAX_BOXES:
        words += (
            f" The first {units.count(MAX_BOXES)} of {units.count(len(graph.groups))} boxes are "
            "drawn: choose fewer levels, or close modules."
        )
    if text.strip():
        many = sum(found.values())
        words += f" \N{LEFT DOUBLE QUOTATION MARK}{text.strip()}\N{RIGHT DOUBLE QUOTATION MARK}: "
        words += f"{units.count(many)} nodes in {units.count(len(found))}." if many else "none."
    return words


def holds_others(run: Run, rank: int, module: str, depth: int) -> bool:
    """Returns whether nodes of modules below it are drawn with it, at a cut that ends at it or
    below."""
    below = f"{module}."
    return module.count(".") + 1 >= depth and any(
        str(one).startswith(below) for one in graph_nodes(run, rank)["module"].unique()
    )


def open_around(opened: list[str], module: str) -> str:
    """Returns the innermost open module that a module is in, or is itself; empty: none."""
    around = [one for one in opened if f"{module}.".startswith(f"{one}.")]
    return max(around, key=len, default="")


def module_facts(
    context: Context, rank: int, module: str, depth: int, opened: list[str]
) -> list[Component]:
    """Returns a module that was clicked: its nodes, its gradient, and where its backward is."""
    graph = graph_of(context.run, rank, depth, opened)
    own = [group for group in graph.groups if group.module == module] if graph else []
    if graph is None or not own:
        return []
    kinds: Counter[str] = Counter()
    for group in own:
        kinds.update(dict(group.kinds))
    shown = [
        f"{count} \N{MULTIPLICATION SIGN} {kind}" for kind, count in kinds.most_common(_LISTED)
    ]
    more = [f"{len(kinds) - _LISTED} more kinds"] if len(kinds) > _LISTED else []
    words = f": {units.counted(kinds.total(), 'node')} ({', '.join([*shown, *more])}). "
    norm = norms(context.run, rank, graph).get(module)
    if norm is not None:
        of = units.counted(len(own[0].parameters), "parameter")
        words += f"Gradient norm {units.number(norm)} of {of}. "
    link = backward_link(context.run, rank, "" if module == OUTSIDE else module, graph.step)
    return [
        html.Div(
            [
                html.B(module),
                words,
                dcc.Link("Show its backward pass", href=context.address(link)),
            ]
        )
    ]


def gradient_breaks_note(context: Context, rank: int, graph: Graph) -> list[Component]:
    """Returns modules that get no gradient, and why."""
    if not graph.cut_off:
        return []
    items = [
        html.Li(
            [
                html.B(name or "the model itself"),
                f" {NO_GRADIENT_CAUSES[cause]}. ",
                dcc.Link(
                    "Show the step on the timeline",
                    href=context.address(backward_link(context.run, rank, name, graph.step)),
                ),
            ]
        )
        for name, cause in list(graph.cut_off.items())[:MAX_ITEMS]
    ]
    if len(graph.cut_off) > MAX_ITEMS:
        items.append(html.Li(f"and {units.count(len(graph.cut_off) - MAX_ITEMS)} more"))
    words = "Trainable modules that get no gradient from this backward:"
    return [
        widgets.note([words, html.Ul(items, style={"margin": 0, "paddingLeft": "1.4em"})], "warn")
    ]


def break_table(context: Context, rank: int) -> list[Component]:
    """Returns operators at which a gradient ends."""
    run = context.run
    title = html.H2("Where gradients end")
    if not run.counts_of(rank)["access"]:
        words = (
            "Not checked: record with the native engine at level access or above, which shows what "
            "operators read and write."
        )
        if not gradient_breaks.breaks(run, rank):
            return [title, html.P(words, className="muted")]
    found = gradient_breaks.breaks(run, rank)
    if not found:
        words = "No operator between the parameters and the loss keeps a gradient back."
        return [title, html.P(words, className="muted")]
    rows = [
        [
            html.B(one.op),
            gradient_breaks.BREAK_CAUSES[one.cause],
            one.module or OUTSIDE,
            html.Code(short(one.where)) if one.where else "",
            units.count(one.count),
            dcc.Link("timeline", href=context.address(one.link)),
        ]
        for one in found[:MAX_ITEMS]
    ]
    lead = (
        "Some of these are meant: targets that are detached, masks, a metric under no_grad. What "
        "is not is why a module learns less than it should. "
    )
    heads = ("operator", "what it does", "module", "line", "times", "")
    table = html.Div(widgets.plain_table(heads, rows, numbers=[4]), className="wide-table")
    more = (
        [f"The first {len(rows)} of {units.count(len(found))}."] if len(found) > len(rows) else []
    )
    return [title, html.P([lead, *more], className="muted"), table]


def fx_words(run: Run, rank: int) -> list[Component]:
    """Lists the modules that torch.fx could not trace, and how to make them traceable."""
    items = [
        html.Li(
            [
                html.B(one.graph),
                " cannot be traced: " if one.kind == FX_UNTRACEABLE else " was broken in two: ",
                one.reason,
                html.Code(short(one.where)) if one.where else "",
            ]
        )
        for one in refusals(run, rank)
    ]
    made: list[Any] = []
    if items:
        words = "Not followed by torch.fx:"
        made.append(
            widgets.note([words, html.Ul(items, style={"margin": 0, "paddingLeft": "1.4em"})])
        )
    if not fx_graphs(run, rank) and not items:
        made.append(
            html.P(
                [
                    "No torch.fx graph was recorded. Graphs of torch.compile and of modules that "
                    "torch.fx made are recorded by themselves, that of another model with ",
                    html.Code("lanescope record --trace-model"),
                    ".",
                ],
                className="muted",
            )
        )
    return made


def tie_table(ties: pd.DataFrame, chosen: Mapping[str, float]) -> Component:
    """Returns fx nodes with their lines and the autograd nodes that they became; `chosen`:
    norms."""
    rows = []
    for row in ties.head(MAX_TIES).itertuples():
        norm = chosen.get(str(row.module))
        rows.append(
            {
                "node": row.node_name,
                "calls": row.target,
                "module": row.module,
                "line": short(str(row.where)),
                "autograd": row.autograd or "none",
                "norm": norm,
                "norm_text": "" if norm is None else units.number(norm),
            }
        )
    columns = [
        grids.column("node", "torch.fx node", flex=2),
        grids.column("calls", "calls", flex=2),
        grids.column("module", "module", flex=2),
        grids.column("line", "line", flex=2),
        grids.column("autograd", "autograd nodes", flex=3),
        grids.column("norm", "gradient norm", number=True, text=True, minWidth=120),
    ]
    return grids.grid("graph-tie-table", columns, rows, label="Nodes of torch.fx", height="320px")


def short(where: str) -> str:
    """Returns the last two names of a path, with the line."""
    return "/".join(where.split("/")[-2:])
