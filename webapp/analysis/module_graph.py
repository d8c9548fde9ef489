"""Nodes of a graph as boxes, one per module: of an autograd graph, or of one of torch.fx."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pandas as pd

OUTSIDE = "(outside)"
"""What runs in no module: the loss, and what the program computes itself."""


@dataclass(frozen=True)
class Group:
    """Nodes of one module, as one box of the drawing."""

    name: str
    nodes: int
    kinds: tuple[tuple[str, int], ...]  # names of nodes and how many, most frequent first
    parameters: tuple[str, ...]  # whose gradients are added up in it
    level: int  # longest way from the loss; an edge leads to a higher level, or back


@dataclass(frozen=True)
class Graph:
    """The graph at some depth of the module tree."""

    step: int
    groups: tuple[Group, ...]
    edges: dict[tuple[str, str], int]  # (from, to) -> how many edges of nodes
    cut_off: dict[str, str] = field(default_factory=dict)  # module -> cause

    @property
    def nodes(self) -> int:
        """Nodes in it."""
        return sum(group.nodes for group in self.groups)


def graph_by_module(
    nodes: pd.DataFrame, step: int, depth: int | None, opened: Collection[str]
) -> Graph:
    """The graph of rows with `node`, `name`, `module`, `parameter` and `next`, as in the tables.

    Paths of modules are cut after `depth` names, those below a module in `opened` a name later.
    """
    names = group_names(nodes["module"], depth, opened)
    groups_of = dict(zip(nodes["node"].astype(int), names, strict=True))
    edges: Counter[tuple[str, str]] = Counter()
    for one, following in zip(names, nodes["next"], strict=True):
        for other in str(following).split():
            pair = (one, groups_of.get(int(other), OUTSIDE))
            edges[pair] += pair[0] != pair[1]
    between = {pair: count for pair, count in edges.items() if count}
    levels = _levels(list(dict.fromkeys(names)), between)
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    parameters: dict[str, list[str]] = defaultdict(list)
    for name, kind, parameter in zip(names, nodes["name"], nodes["parameter"], strict=True):
        kinds[name][str(kind)] += 1
        if parameter:
            parameters[name].append(str(parameter))
    groups = [
        Group(name, found.total(), tuple(found.most_common()), tuple(parameters[name]),
              levels[name])
        for name, found in kinds.items()
    ]  # fmt: skip
    return Graph(step, tuple(groups), between)


def group_names(
    modules: Iterable[str], depth: int | None, opened: Collection[str] = ()
) -> list[str]:
    """The group that each path of a module is in."""
    return [_cut(str(module), depth, opened) for module in modules]


def matches(
    nodes: pd.DataFrame, text: str, depth: int | None, opened: Collection[str]
) -> dict[str, int]:
    """Group -> how many of its nodes have the text in their module, name or parameter."""
    if not text.strip():
        return {}
    wanted = text.strip().lower()
    found = pd.Series(False, index=nodes.index)
    for column in ("module", "name", "parameter"):
        found |= nodes[column].astype(str).str.lower().str.contains(wanted, regex=False)
    return dict(Counter(group_names(nodes.loc[found, "module"], depth, opened)))


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


def _levels(order: list[str], edges: dict[tuple[str, str], int]) -> dict[str, int]:
    """Longest way from the loss, along edges that lead onward in the order of discovery by depth.

    Modules may hand gradients to each other both ways (a residual path around a child); the edge
    that closes such a circle does not count.
    """
    following: dict[str, list[str]] = {name: [] for name in order}
    for one, other in edges:
        following[one].append(other)
    seen: set[str] = set()
    finished: list[str] = []
    for root in order:
        stack = [] if root in seen else [(root, iter(following[root]))]
        seen.add(root)
        while stack:
            name, rest = stack[-1]
            deeper = next((one for one in rest if one not in seen), None)
            if deeper is None:
                finished.append(name)
                stack.pop()
            else:
                seen.add(deeper)
                stack.append((deeper, iter(following[deeper])))
    place = {name: position for position, name in enumerate(reversed(finished))}
    levels = dict.fromkeys(order, 0)
    for name in sorted(order, key=place.__getitem__):
        for other in following[name]:
            if place[other] > place[name]:
                levels[other] = max(levels[other], levels[name] + 1)
    return levels
