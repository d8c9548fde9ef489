"""Into which parts does a module fall, so that none both hands gradients to another and gets some
back from it?

A block that adds what its children made to what it got runs before them and after them. Drawn as
one, it would lead to its children and follow them, and stand far from where it is used. So the
nodes are put in an order in which gradients may flow, staying in a module for as long as that goes;
each stretch of a module in it is a part. An edge never leads to an earlier part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MAX_PARTS = 48
"""Calls of one module; a module called more often (a recurrent cell) is not split."""


def acyclic_parts(groups: Sequence[str], following: Sequence[Sequence[int]]) -> list[int]:
    """Returns number, from 0, of the part of its group that each node is in.

    `following`: to which nodes (positions) each one's edges lead; without a circle.
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
