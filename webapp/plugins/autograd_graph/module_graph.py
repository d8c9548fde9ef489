"""Nodes of a graph as boxes, one per module: of an autograd graph, or of one of torch.fx."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

OUTSIDE = "(outside)"
"""What runs in no module: the loss, and what the program computes itself."""

MAX_PARTS = 48
"""Calls of one module; a module called more often (a recurrent cell) is not split."""


@dataclass(frozen=True)
class ModuleBox:
    """Nodes of one module, or of a part of it (see `acyclic_parts`), as one box of the drawing."""

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
    names = [
        f"{module} \N{MIDDLE DOT} {number + 1}" if number else module
        for module, number in zip(modules, numbers, strict=True)
    ]
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


def acyclic_parts(groups: Sequence[str], following: Sequence[Sequence[int]]) -> list[int]:
    """Splits groups of nodes into parts whose edges form no cycle; returns each node's part, from
    0, within its group.

    A residual block runs both before and after its children. Drawn as one box it would lead to its
    children and follow them, far from where it is used. So the nodes are ordered as gradients may
    flow, staying in a module for as long as possible; each stretch of a module is a part. An edge
    never leads to an earlier part.

    `following`: to which nodes (positions) each one's edges lead; without a cycle.
    """
    order = _Order(groups, following)
    numbers = [0] * len(groups)
    count: Counter[str] = Counter()
    for group, nodes in order.stretches():
        for node in nodes:
            numbers[node] = count[group]
        count[group] += 1
    return [0 if count[one] > MAX_PARTS else n for one, n in zip(groups, numbers, strict=True)]


class _Order:
    """Takes nodes whose predecessors have all been taken, a stretch of one group at a time."""

    def __init__(self, groups: Sequence[str], following: Sequence[Sequence[int]]) -> None:
        self._groups = groups
        self._following = following
        self._waiting = [0] * len(groups)
        for nodes in following:
            for node in nodes:
                self._waiting[node] += 1
        self._left = Counter(groups)
        self._ready: dict[str, list[int]] = {}
        self._known: dict[str, tuple[list[int], bool]] = {}  # group -> its next stretch

    def stretches(self) -> list[tuple[str, list[int]]]:
        """(group, nodes), in order."""
        for node, before in enumerate(self._waiting):
            if not before:
                self._ready.setdefault(self._groups[node], []).append(node)
        found = []
        while self._ready:
            group = self._next()
            nodes, _ = self._stretch(group)
            del self._ready[group], self._known[group]
            self._left[group] -= len(nodes)
            taken = set(nodes)
            for node in nodes:
                for one in self._following[node]:
                    self._waiting[one] -= 1
                    other = self._groups[one]
                    if not self._waiting[one] and one not in taken:
                        self._ready.setdefault(other, []).append(one)
                        self._known.pop(other, None)
            found.append((group, nodes))
        return found

    def _next(self) -> str:
        """A group that can be finished; else one that others wait for."""
        waited_for = None
        for group in self._ready:
            nodes, outward = self._stretch(group)
            if len(nodes) == self._left[group]:
                return group
            if waited_for is None and outward:
                waited_for = group
        return waited_for or next(iter(self._ready))

    def _stretch(self, group: str) -> tuple[list[int], bool]:
        """What can be taken of a group without leaving it, and whether edges lead out of that."""
        if group not in self._known:
            nodes = list(self._ready[group])
            missing: dict[int, int] = {}
            outward = False
            for node in nodes:  # grows
                for one in self._following[node]:
                    if self._groups[one] != group:
                        outward = True
                        continue
                    missing[one] = missing.get(one, self._waiting[one]) - 1
                    if not missing[one]:
                        nodes.append(one)
            self._known[group] = nodes, outward
        return self._known[group]
