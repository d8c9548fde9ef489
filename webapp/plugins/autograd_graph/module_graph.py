"""Nodes of a graph as boxes, one per module: of an autograd graph, or of one of torch.fx."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pandas as pd

from lanescope.webapp.plugins.autograd_graph.acyclic import acyclic_parts

OUTSIDE = "(outside)"
"""What runs in no module: the loss, and what the program computes itself."""


@dataclass(frozen=True)
class ModuleBox:
    """Nodes of one module, or of a part of it (see `acyclic`), as one box of the drawing."""

    name: str  # the module's path; of parts but the first with their number
    nodes: int
    kinds: tuple[tuple[str, int], ...]  # names of nodes and how many, most frequent first
    parameters: tuple[str, ...]  # whose gradients are added up in it
    module: str
    part: int = 1
    parts: int = 1


@dataclass(frozen=True)
class Graph:
    """The graph at some depth of the module tree."""

    step: int
    groups: tuple[ModuleBox, ...]
    edges: dict[tuple[str, str], int]  # (from, to) -> how many edges of nodes
    cut_off: dict[str, str] = field(default_factory=dict)  # module -> cause

    @property
    def nodes(self) -> int:
        """Nodes in it."""
        return sum(group.nodes for group in self.groups)


def graph_by_module(
    nodes: pd.DataFrame, step: int, depth: int | None, opened: Collection[str]
) -> Graph:
    """Returns the graph of rows with `node`, `name`, `module`, `parameter` and `next`, as in the
    tables.

    Paths of modules are cut after `depth` names, those below a module in `opened` a name later.
    """
    modules = group_names(nodes["module"], depth, opened)
    place = {int(node): position for position, node in enumerate(nodes["node"])}
    following = [
        [place[int(one)] for one in str(after).split() if int(one) in place]
        for after in nodes["next"]
    ]
    numbers = acyclic_parts(modules, following)
    count = Counter(dict.fromkeys(modules, 0))
    for module, number in zip(modules, numbers, strict=True):
        count[module] = max(count[module], number + 1)
    names = [_part_name(module, number) for module, number in zip(modules, numbers, strict=True)]
    adds = [bool(parameter) for parameter in nodes["parameter"]]
    edges: Counter[tuple[str, str]] = Counter()
    for node, after in enumerate(following):
        for other in after:
            # That all calls of a module add to its own parameters needs no lines.
            if not (adds[other] and modules[node] == modules[other]):
                edges[names[node], names[other]] += names[node] != names[other]
    between = {pair: many for pair, many in edges.items() if many}
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    parameters: dict[str, list[str]] = defaultdict(list)
    of = {}
    for name, module, number, kind, parameter in zip(
        names, modules, numbers, nodes["name"], nodes["parameter"], strict=True
    ):
        of[name] = module, number + 1
        kinds[name][str(kind)] += 1
        if parameter:
            parameters[module].append(str(parameter))
    groups = []
    for name, found in kinds.items():
        module, part = of[name]
        groups.append(
            ModuleBox(
                name,
                found.total(),
                tuple(found.most_common()),
                tuple(parameters[module]),
                module,
                part,
                count[module],
            )
        )
    return Graph(step, tuple(groups), between)


def group_names(
    modules: Iterable[str], depth: int | None, opened: Collection[str] = ()
) -> list[str]:
    """Returns the group that each path of a module is in."""
    return [_cut(str(module), depth, opened) for module in modules]


def matches(
    nodes: pd.DataFrame, text: str, depth: int | None, opened: Collection[str]
) -> dict[str, int]:
    """Returns module drawn -> how many of its nodes have the text in their path, name or
    parameter."""
    if not text.strip():
        return {}
    wanted = text.strip().lower()
    found = pd.Series(False, index=nodes.index)
    for column in ("module", "name", "parameter"):
        found |= nodes[column].astype(str).str.lower().str.contains(wanted, regex=False)
    return dict(Counter(group_names(nodes.loc[found, "module"], depth, opened)))


def _part_name(module: str, number: int) -> str:
    return f"{module} \N{MIDDLE DOT} {number + 1}" if number else module


def _cut(module: str, depth: int | None, opened: Collection[str]) -> str:
    if not module:
        return OUTSIDE
    parts = module.split(".")
    if depth is None:
        return module
    end = depth
    while end < len(parts) and ".".join(parts[:end]) in opened:
        end += 1
    return ".".join(parts[:end])
