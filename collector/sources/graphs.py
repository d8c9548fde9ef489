"""The autograd graph as a backward finds it: how many nodes of each name it will reach.

What is recorded of the backward can be held against that. Walking costs about 1 us a node, so it is
done once in the steps 0, 1, 2, 4, 8, ...
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..kinds import GRAPH_SERIES
from ..recorder import Recorder

MOST_NODES = 50_000
"""Of larger graphs nothing is said: a walk must not be felt."""

_INPUTS = 4
"""Position of `inputs` among the arguments of the engine: given, only part of the graph runs."""


class Graphs:
    """Counts the nodes below what a backward starts from."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sampled = -1  # step

    def sample(self, arguments: tuple[Any, ...]) -> None:
        """A backward with these arguments of the engine begins on the calling thread."""
        recorder, step = self._recorder, self._recorder.step
        if step & (step - 1) or step == self._sampled or not recorder.active:
            return
        if len(arguments) > _INPUTS and arguments[_INPUTS]:
            return
        self._sampled = step
        for name, count in reached(arguments[0]).items():
            recorder.value(GRAPH_SERIES + name, count)


def reached(roots: Any) -> Counter[str]:
    """Name -> number of the nodes that can be reached from tensors; empty: there are too many."""
    tensors = roots if isinstance(roots, (tuple, list)) else (roots,)
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                if len(seen) >= MOST_NODES:
                    return Counter()
                seen.add(node)
                waiting.append(node)
    return Counter(node.name().rpartition("::")[2] for node in seen)
