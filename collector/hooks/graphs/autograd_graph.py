"""Records the autograd graph at the start of a backward: counts of nodes by name.

For the first recorded backward of the process also its nodes and edges. The recorded backward can
be checked against them. Walking costs about 1 us per node, so it is done once in the first step
and in each of the steps 1, 2, 4, 8, ...
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ...format.loop_names import KEPT_OUTPUT
from ...format.names import GRAPH_SERIES, LOSS_DIVISOR, NAN_LOSS, NEGATIVE_LOSS, ZERO_LOSS
from ...format.record_kinds import GradientScope
from ...journal import clock
from ...journal.journal import NO_SEQUENCE, RecordKind
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..stacks import code_place
from ..training.modules import Modules
from ..training.parameters import is_doubling
from ..training_loop.growth import Marks
from .input_facts import input_facts
from .loss_counts import LossCounts
from .loss_facts import LossFacts, slopes
from .node_facts import ends, facts, saved_tensor, short_name

_MAX_NODES = 50_000
"""Nodes of the largest graph that is walked; bounds the pause."""

MAX_DRAWN = 20_000
"""Nodes of the largest graph that is recorded node by node."""

_ACCUMULATES = "AccumulateGrad"
_NO_SEQUENCE = 2**62
"""Sequence numbers from here on belong to nodes that no operator made."""

_NEVER_NEGATIVE = "BinaryCrossEntropy"

_SCALES = ("DivBackward0", "MulBackward0")
_NUMBERS = (torch.int64, torch.float64)
"""Dtypes in which autograd keeps a Python number."""

_LEAST_MARKS = 4
"""Of graphs that a function's context keeps, before that is recorded."""

_INPUTS = 4
"""Position of `inputs` among the engine's arguments; with it only part of the graph runs."""


class Graphs:
    """Counts the nodes reachable from a backward's roots. `name_of` returns a parameter's name.

    `counts`: whether the engine sees all nodes, so that the counts can be checked.
    """

    def __init__(
        self, recorder: Recorder, name_of: Callable[[torch.Tensor], str | None], *, counts: bool
    ) -> None:
        self._recorder = recorder
        self._name_of = name_of
        self._counts = counts
        self._sampled = -1  # step
        self._facts = LossFacts()
        self.loss_counts = LossCounts(recorder)
        self._kept: dict[str, Marks] = defaultdict(Marks)  # by name of the series
        self._losses: dict[str, tuple[float, float]] = {}  # last and largest by node

    def sample(self, arguments: tuple[Any, ...]) -> None:
        """Samples the graph of a backward on the calling thread, from the engine's arguments."""
        recorder, step = self._recorder, self._recorder.step
        if not recorder.active or (len(arguments) > _INPUTS and arguments[_INPUTS]):
            return
        roots = arguments[0] if isinstance(arguments[0], (tuple, list)) else (arguments[0],)
        self._impossible(roots)
        first = self._sampled < 0  # not step 0 where a window of steps is recorded
        if not first and (not is_doubling(step) or not self._counts):
            return
        if len(roots) == 1:
            with recorder.contain_errors():
                self.loss_counts.sample(roots[0])
        if step == self._sampled:
            return
        self._sampled = step
        self._divisor(roots)
        nodes = _reached(roots)
        if self._counts:
            for name, count in Counter(short_name(node) for node in nodes).items():
                recorder.value(GRAPH_SERIES + name, count)
        with recorder.own_torch():
            keeping = {name: node for node in nodes for name in _kept_outputs(node)}
        for name, node in keeping.items():
            since = self._kept[name].since(_LEAST_MARKS)
            if since is not None:
                recorder.value(name, float(since))
            self._kept[name].add(node, step)
        with recorder.contain_errors(), recorder.own_torch():
            named = [(short_name(node), node) for node in nodes[:MAX_DRAWN]]
            known = self._facts.of(named, first=first)
            for name, number in (*slopes(named), *known, *ends(named), *input_facts(named)):
                recorder.value(name, number)
        if first and len(nodes) <= MAX_DRAWN:
            self._write(nodes)

    def _impossible(self, roots: Sequence[Any]) -> None:
        """Records a loss that is NaN, 0, or below zero where it cannot be, if it is known without
        waiting for a device."""
        number = self._number(roots[0]) if [*map(type, roots)] == [torch.Tensor] else None
        if number is None:
            return
        if number != number:
            self._recorder.value(NAN_LOSS, 1.0)
        elif number.real < 0 and _NEVER_NEGATIVE in str(roots[0].grad_fn):
            self._recorder.value(NEGATIVE_LOSS, 1.0)
        self._falls(short_name(roots[0].grad_fn), abs(number))

    def _falls(self, kind: str, loss: float) -> None:
        """Records a loss of 0, and how far losses of the kind had fallen before."""
        last, largest = self._losses.get(kind, (0.0, 0.0))
        if loss == 0:
            self._recorder.value(ZERO_LOSS, last / largest if largest else 1.0)
        elif loss < math.inf:  # neither NaN
            self._losses[kind] = loss, max(loss, largest)

    def _number(self, tensor: torch.Tensor) -> Any:
        """Returns the number in a tensor of one in host memory; None of another tensor."""
        if tensor.dim() or tensor.device.type != "cpu":
            return None
        with self._recorder.own_torch():
            return tensor.item()

    def _divisor(self, roots: Sequence[Any]) -> None:
        other = _divided_by(roots)
        number = float((None if other is None else self._number(other)) or 0)
        if number:
            times = short_name(roots[0].grad_fn).startswith("Mul")
            self._recorder.value(LOSS_DIVISOR, 1 / number if times else number)

    def _write(self, nodes: list[Any]) -> None:
        recorder, state, instant = self._recorder, self._recorder.thread(), clock.now()
        numbers = {node: number for number, node in enumerate(nodes)}
        named = ((short_name(node), node, number) for node, number in numbers.items())
        with recorder.contain_errors(), recorder.own_torch():
            for name, fact in facts(named):
                recorder.value(name, fact)
        for node, number in numbers.items():
            following = [numbers[one] for one, _ in node.next_functions if one is not None]
            # The program's own function may have an attribute of this name.
            variable = node.variable if short_name(node) == _ACCUMULATES else None
            parameter = None if variable is None else self._name_of(variable)
            sequence = NO_SEQUENCE if variable is not None else node._sequence_nr()
            recorder.put(
                state,
                RecordKind.GRADIENT,
                scope=GradientScope.NODE,
                start=instant,
                aux=number,
                name=recorder.intern(short_name(node)),
                sequence=sequence if sequence < _NO_SEQUENCE else NO_SEQUENCE,
                signature=recorder.intern(" ".join(map(str, following))),
                extra=recorder.intern(parameter or ""),
            )


def _kept_outputs(node: Any) -> Iterator[str]:
    """Yields names of KEPT_OUTPUT, of outputs that a function has as attributes of its context."""
    function = getattr(type(node), "_forward_cls", None)
    if function is None:
        return
    for name, value in vars(node).items():
        if isinstance(value, torch.Tensor) and value.grad_fn is node:
            code = getattr(function.forward, "__code__", None)
            yield f"{KEPT_OUTPUT}{code_place(code)}/{function.__name__}/{name}"


def _divided_by(roots: Sequence[Any]) -> torch.Tensor | None:
    """Returns the Python number, as autograd keeps it, by which a single root was divided or
    multiplied last of all; None without such a number.
    """
    node = roots[0].grad_fn if len(roots) == 1 else None
    if node is None or short_name(node) not in _SCALES:
        return None
    number = saved_tensor(node, "_raw_saved_other")
    return number if number is not None and number.dtype in _NUMBERS else None


def _reached(roots: Sequence[Any]) -> list[Any]:
    """Returns nodes reachable from tensors, the tensors' own first; empty: too many."""
    waiting = [tensor.grad_fn for tensor in roots if tensor.grad_fn is not None]
    seen = dict.fromkeys(waiting)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                if len(seen) >= _MAX_NODES:
                    return []
                seen[node] = None
                waiting.append(node)
    return list(seen)


def _hook(context: HookContext) -> None:
    # The portable engine does not see nodes that run no operator.
    counts = context.library is not None
    names = context.get(Modules).parameter_name
    graphs = context.share(Graphs(context.recorder, names, counts=counts))
    context.patches.also_undo(partial(graphs.loss_counts.readback.finish, context.recorder))


HOOK = Hook("autograd graphs", _hook)
