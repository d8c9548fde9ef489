"""The torch.fx graphs of a run by module, and how they hang together with the autograd graph.

An fx node is tied to the autograd nodes of the operators that ran in the same module at the same
line of the program: those of its own name, and those of a name that no other node there has.
Drawn, a graph stands on its head, so that it begins at the output as the autograd graph does at
the loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

import pandas as pd

from lanescope.collector.format.names import FX_BREAK, FX_UNTRACEABLE
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.forward_ops import forward_rows, outermost
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.analysis.stack_frames import frame_texts, innermost_line
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.plugins.autograd_graph.module_graph import Graph, graph_by_module, group_names
from lanescope.webapp.runs.run import Run


@dataclass(frozen=True)
class _Refusal:
    """A model that could not be traced, or where torch.compile stopped capturing."""

    graph: str
    kind: str  # FX_UNTRACEABLE or FX_BREAK
    reason: str
    where: str  # file:line, or empty


def fx_graphs(run: Run, rank: int) -> list[str]:
    """Returns names of the graphs of a rank, the first recorded first."""
    return list(dict.fromkeys(_nodes(run, rank)["graph"]))


def refusals(run: Run, rank: int) -> list[_Refusal]:
    """Returns what torch.fx and torch.compile could not follow, each once."""
    rows = _rows(run, rank)
    rows = rows[rows["op"].isin([FX_BREAK, FX_UNTRACEABLE])]
    found = [
        _Refusal(
            str(r.graph).partition(" ")[2], str(r.op), " ".join(str(r.target).split()), r.where
        )
        for r in rows.itertuples()
    ]
    return list(dict.fromkeys(found))


def fx_graph_of(
    run: Run, rank: int, graph: str, depth: int | None, opened: Collection[str] = ()
) -> Graph:
    """Returns a graph from its output to its inputs; the parameters of a group are those of its
    modules."""
    nodes = fx_nodes(run, rank, graph)
    before: dict[int, list[int]] = defaultdict(list)
    for node, users in zip(nodes["node"], nodes["next"], strict=True):
        for user in str(users).split():
            before[int(user)].append(int(node))
    backwards = nodes.iloc[::-1].assign(
        next=[" ".join(map(str, before[int(node)])) for node in nodes["node"][::-1]]
    )
    step = int(nodes["step"].iloc[0])
    drawn = graph_by_module(backwards, step, depth, opened)
    own: dict[str, list[str]] = defaultdict(list)
    rows = gradient_rows(run).drop_duplicates("parameter")
    for name, parameter in zip(
        group_names(rows["layer"], depth, opened), rows["parameter"], strict=True
    ):
        own[name].append(str(parameter))
    groups = tuple(replace(group, parameters=tuple(own[group.module])) for group in drawn.groups)
    return replace(drawn, groups=groups)


def fx_nodes(run: Run, rank: int, graph: str) -> pd.DataFrame:
    """Returns rows of the fx table of a graph, with `where` and, as a node of autograd has it,
    `parameter` (empty). `name` is what the node does."""
    rows = _nodes(run, rank)
    return rows[rows["graph"] == graph].assign(
        parameter="", node_name=rows["name"], name=rows["does"]
    )


def tied(run: Run, rank: int, graph: str) -> pd.DataFrame:
    """Returns per fx node that is called node_name, op, target, module, where, and `autograd`:
    names of the autograd nodes that it became, in their order, empty where it made none.
    """
    nodes = fx_nodes(run, rank, graph)
    nodes = nodes[nodes["op"].str.startswith("call_")]
    known = graph_nodes(run, rank)
    made: dict[tuple[str, str], list[tuple[str, list[int]]]] = defaultdict(list)
    if not known.empty:
        frames = frame_texts(run, rank)
        rows = forward_rows(run, rank, known)
        for op in outermost(rows):
            row = rows.iloc[op.row]
            stack = frames.get(int(row["stack"]), []) if row["stack"] == row["stack"] else []
            if stack and op.made:
                key = (str(row["module"]), innermost_line(stack))
                made[key].append((_stem(op.name), sorted(op.made)))
    named = known.dropna(subset="sequence")
    names = dict(zip(named["sequence"].astype(int), named["name"], strict=True))
    claimed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in nodes.itertuples():
        claimed[str(row.module), str(row.where)].add(_stem(str(row.target)))
    autograd = []
    for row in nodes.itertuples():
        key, own = (str(row.module), str(row.where)), _stem(str(row.target))
        ops = [
            one
            for name, numbers in made[key]
            for one in numbers
            if row.op == "call_module" or name == own or name not in claimed[key]
        ]
        autograd.append(" ".join(dict.fromkeys(str(names[one]) for one in ops if one in names)))
    return nodes.assign(autograd=autograd)


def _stem(name: str) -> str:
    """What an operator and a call of it have in common: aten::add_, operator.add are add."""
    return name.rpartition("::")[2].rpartition(".")[2].rstrip("_")


def _nodes(run: Run, rank: int) -> pd.DataFrame:
    rows = _rows(run, rank)
    return rows[~rows["op"].isin([FX_BREAK, FX_UNTRACEABLE])]


@lru_cache(maxsize=8)
def _rows(run: Run, rank: int) -> pd.DataFrame:
    rows = to_frame(run.events("fx", rank))
    frames = frame_texts(run, rank)
    places = [frames.get(int(one), [""]) if one == one else [""] for one in rows["stack"]]
    does = rows["target"].where(rows["op"].astype(str).str.startswith("call_"), rows["op"])
    return rows.assign(
        where=[innermost_line(place) for place in places],
        does=[_short(str(one), str(op)) for one, op in zip(does, rows["op"], strict=True)],
        op=rows["op"].astype(str),
        graph=rows["graph"].astype(str),
    )


def _short(target: str, op: str) -> str:
    """Returns the name that nodes of the same kind share; modules are named by their path."""
    return "module" if op == "call_module" else target
