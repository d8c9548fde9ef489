"""Records what there is more of with each step: autograd graphs in memory, hooks of a model.

A mark is put into the metadata of a node of the graph, a dictionary that torch has for anomaly
detection. It goes with the node, whatever holds the graph.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...format.loop_names import KEPT_GRAPHS, MODEL_HOOKS
from ...recorder.recorder import Recorder
from ..patches import caller
from ..stacks import code_place, program_place
from ..training.activations import tensors_in
from ..training.modules import own_class, unwrap

_CALLS = 4  # of one step
_EACH = 64
"""All of the first steps are marked, then sampled ones: a mark takes some microseconds."""

_MARKS, _LEAST, _SHARE = 32, 16, 0.9
"""Of so many last marks of a call, with a least number, this share must be there."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MANY = 8


class _Mark:
    __slots__ = ("__weakref__", "step")

    def __init__(self, step: int) -> None:
        self.step = step


class Marks:
    """Marks of the last steps, one of each."""

    def __init__(self) -> None:
        self._marks: deque[weakref.ref[_Mark]] = deque(maxlen=_MARKS)

    def add(self, node: Any, step: int) -> None:
        """Marks a node of the graph."""
        node.metadata["lanescope"] = mark = _Mark(step)
        self._marks.append(weakref.ref(mark))

    def since(self, least: int) -> int | None:
        """Returns the first step whose mark is there, of `least` or more that nearly all are."""
        if len(self._marks) < least:
            return None
        there = [one.step for one in (mark() for mark in self._marks) if one is not None]
        return there[0] if len(there) >= _SHARE * len(self._marks) else None


class Growth:
    """Writes values named KEPT_GRAPHS and MODEL_HOOKS."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._step, self._call = -1, 0
        self._marks = [Marks() for _ in range(_CALLS)]

    def returned(self, module: torch.nn.Module, output: Any, *, sampled: bool) -> None:
        """Marks the graph of what an outermost module returned; where `sampled`, looks for the
        marks of earlier steps."""
        step = self._recorder.step
        if not (sampled or step < _EACH):
            return
        self._step, self._call = step, self._call + 1 if step == self._step else 0
        if self._call >= _CALLS:
            return
        marks = self._marks[self._call]
        since = marks.since(_LEAST) if sampled else None
        if since is not None:
            place = program_place(caller(), self._is_library)
            name = f"{KEPT_GRAPHS}{place}/{own_class(unwrap(module)).__name__}"
            self._recorder.value(name, float(since))
        with self._recorder.own_torch():
            node = next((one.grad_fn for one in tensors_in(output) if one.requires_grad), None)
        if node is not None:
            marks.add(node, step)

    def hooks(self, module: torch.nn.Module) -> None:
        """Counts a model's hooks by function."""
        with self._recorder.own_torch():
            counts = Counter(code for hook in _hooks(module) if (code := _code(hook)) is not None)
        for code, count in counts.items():
            if count >= _MANY and not self._is_library(code.co_filename):
                name = f"{MODEL_HOOKS}{code_place(code)}/{code.co_name}"
                self._recorder.value(name, float(count))


def _hooks(module: torch.nn.Module) -> Iterator[Any]:
    for one in (*module.modules(), *module.parameters()):
        for name in _HOOKS:
            yield from (getattr(one, name, None) or {}).values()


def _code(hook: Any) -> Any:
    return getattr(getattr(hook, "func", hook), "__code__", None)
