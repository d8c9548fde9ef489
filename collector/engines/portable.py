"""Records operators without a compiler, by a TorchDispatchMode in every thread.

It sees operators that the dispatcher runs below autograd: leaf operators, also those of autograd
nodes and of DDP's reducer. It does not see composite operators, which are decomposed by then, nor
the exact bounds of an autograd node: its span covers the ops that ran for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ..format.names import OpFilter
from ..format.record_kinds import OpScope
from ..hooks import dispatch_modes
from ..hooks.collectives.collectives import NAMESPACES, Collectives, RunningCollective
from ..hooks.patches import Patches
from ..hooks.stacks import Stacks
from ..journal import clock
from ..journal.journal import NO_SEQUENCE, RecordKind
from ..journal.process_journals import ThreadState
from ..recorder.private_names import optional
from ..recorder.recorder import Recorder
from .dispatch_mode import DispatchMode
from .values import OperatorReading, Values

PORTABLE = "portable"

_SCOPE_ENTER = "profiler::_record_function_enter"
_SCOPE_EXIT = "profiler::_record_function_exit"
_ACCUMULATE = 2**63
"""Nodes that accumulate into a leaf have the largest number, which belongs to no forward op."""


class _Operator(NamedTuple):
    """Facts of an operator, found at its first call."""

    name: int
    wanted: bool
    collective: bool
    waits: bool  # for a functional collective
    enters_scope: bool
    exits_scope: bool


class Scope(NamedTuple):
    """An open user scope, with the state at its start."""

    name: str
    start: int
    depth: int
    step: int
    module: int
    phase: int


class Node:
    """The autograd node that runs on a thread."""

    __slots__ = ("end", "identity", "name", "sequence", "start")

    def __init__(self, identity: int, name: int, sequence: int, start: int) -> None:
        self.identity = identity
        self.name = name
        self.sequence = sequence
        self.start = start
        self.end = start


class PortableEngine:
    """Records the ops of every thread that enters it."""

    def __init__(self, recorder: Recorder, collectives: Collectives, stacks: Stacks | None) -> None:
        options = recorder.options
        self._recorder = recorder
        self._collectives = collectives
        self._stacks = stacks
        self._filter = OpFilter(options.include, options.exclude)
        self._minimum = options.min_duration_ns
        self._values = Values(recorder) if options.level == "numerics" else None
        self._operators: dict[Any, _Operator] = {}
        self._signatures: dict[tuple[Any, ...], int] = {}
        self._current_node = optional(
            "torch._C", "_current_autograd_node", "autograd nodes (portable engine)"
        ) or (lambda: None)
        self._next_sequence = optional(
            "torch._C",
            "_autograd._get_sequence_nr",
            "which operator made which autograd node (portable engine)",
        )
        self._main = self.enter()
        self._patches = Patches()

    def enter(self) -> contextlib.AbstractContextManager[None]:
        """Records the calling thread's ops inside the block."""
        return dispatch_modes.entered(DispatchMode(self))

    def start(self) -> None:
        """Starts recording the calling (main) thread."""
        self._main.__enter__()
        # A dispatch mode hides results from the tracer of torch.jit: it fails on a convolution.
        for name in ("trace", "trace_module", "_get_trace_graph"):
            self._patches.ends(
                torch.jit,
                name,
                lambda *_, **__: dispatch_modes.pop_own(DispatchMode),
                lambda mode, _: dispatch_modes.push(mode),
                lambda mode, _: dispatch_modes.push(mode),
                lost="torch.jit.trace (portable engine)",
                also=("torch.jit._trace",),
            )

    def stop(self) -> None:
        """Stops recording the calling thread."""
        self._patches.undo()
        self._main.__exit__(None, None, None)
        if self._values is not None:
            self._values.drain(self._recorder.thread(), wait=True)

    # per op --------------------------------------------------------------------------------

    def dispatch(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operator and records it."""
        recorder = self._recorder
        if recorder.closed or not recorder.active:
            return operator(*args, **kwargs)
        try:
            state = recorder.thread()
        except Exception as error:
            recorder.failed(error)
            return operator(*args, **kwargs)
        if state.busy:
            return operator(*args, **kwargs)
        call: RunningCollective | None = None
        reading: OperatorReading | None = None
        known: _Operator | None = None
        signature = NO_SEQUENCE
        opened = -1
        try:
            known = self._operators.get(operator) or self._learn(operator)
            self._follow_node(state)
            if self._values is not None:
                reading = self._values.begin(operator, args, kwargs, known.wanted)
            if known.wanted:
                signature = self._signature(args, kwargs)
                if known.collective:
                    call = self._collectives.begin(operator, args)
                opened = self._push_open(state, known)
                if call is not None:
                    self._collectives.open(state, call)
        except Exception as error:
            recorder.failed(error)
        start = clock.now()
        result: Any = None
        try:
            result = operator(*args, **kwargs)
            return result
        finally:
            end = clock.now()
            try:
                if opened >= 0:
                    state.open = opened
                    state.journal.pop_open(opened)
                if known is not None:
                    self._record(state, known, signature, call, result, args, start, end)
                    if reading is not None and self._values is not None:
                        self._values.end(
                            state,
                            reading,
                            result,
                            start,
                            state.depth + (state.node is not None),
                            left_out=not known.wanted or end - start < self._minimum,
                        )
            except Exception as error:
                recorder.failed(error)

    def _push_open(self, state: ThreadState, known: _Operator) -> int:
        """Stores that an operator began; returns its level among open events."""
        opened = state.open
        state.open += 1
        step, phase = self._recorder.step, state.phase
        state.journal.push_open(
            opened, RecordKind.OP, OpScope.function, known.name, clock.now(), step, phase
        )
        return opened

    def _record(
        self,
        state: ThreadState,
        known: _Operator,
        signature: int,
        call: RunningCollective | None,
        result: Any,
        args: tuple[Any, ...],
        start: int,
        end: int,
    ) -> None:
        recorder = self._recorder
        if state.node is not None:
            state.node.end = end
        if known.enters_scope:
            scope = Scope(
                str(args[0]), start, state.depth, recorder.step, state.module, state.phase
            )
            state.scopes.append(scope)
            state.depth += 1
            return
        if known.exits_scope:
            self._leave_scope(state, end)
            return
        if not known.wanted:
            recorder.coverage["filtered"] += 1
            return
        if end - start < self._minimum:
            recorder.coverage["shorter_than_minimum"] += 1
            return
        if call is not None:
            self._collectives.end(call, result, start, end)
        elif known.waits:
            self._collectives.waited(args, end)
        in_node = state.node is not None
        recorder.put(
            state,
            RecordKind.OP,
            scope=OpScope.function,
            depth=state.depth + in_node,
            name=known.name,
            start=start,
            end=end,
            sequence=self._forward_sequence(args),
            signature=signature,
            stack=self._stacks.capture() if self._stacks else 0,
        )

    # autograd ------------------------------------------------------------------------------

    def flush_node(self) -> None:
        """Records the last node of the calling thread's backward, which ended."""
        state = self._recorder.thread()
        node: Node | None = state.node
        if node is None:
            return
        state.node = None
        self._recorder.put(
            state,
            RecordKind.OP,
            scope=OpScope.backward,
            depth=state.depth,
            name=node.name,
            start=node.start,
            end=node.end,
            sequence=node.sequence,
        )

    def _follow_node(self, state: ThreadState) -> None:
        node: Any = self._current_node()
        current: Node | None = state.node
        # A reference would keep the graph's saved tensors alive.
        identity = id(node)
        if current is not None:
            if node is not None and current.identity == identity:
                return
            self.flush_node()
        if node is not None:
            sequence = node._sequence_nr()
            state.node = Node(
                identity,
                self._recorder.intern(node.name().rpartition("::")[2]),
                sequence if sequence < _ACCUMULATE else NO_SEQUENCE,
                clock.now(),
            )

    def _forward_sequence(self, args: tuple[Any, ...]) -> int:
        """Returns the number of this op's node, which is created just before the dispatch."""
        if self._next_sequence is None or not torch.is_grad_enabled():
            return NO_SEQUENCE
        for argument in args:
            if isinstance(argument, torch.Tensor):
                needs = argument.requires_grad
            elif isinstance(argument, (list, tuple)):
                needs = any(isinstance(t, torch.Tensor) and t.requires_grad for t in argument)
            else:
                continue
            if needs:
                return int(self._next_sequence()) - 1
        return NO_SEQUENCE

    # names and signatures ------------------------------------------------------------------

    def _learn(self, operator: Any) -> _Operator:
        schema = getattr(operator, "_schema", None)
        name = schema.name if schema is not None else f"higher_order::{operator.name()}"
        enters, exits = name.startswith(_SCOPE_ENTER), name.startswith(_SCOPE_EXIT)
        known = _Operator(
            name=self._recorder.intern(name),
            wanted=self._filter.wanted(name),
            collective=name.partition("::")[0] in NAMESPACES,
            waits=name.endswith("::wait_tensor"),
            enters_scope=enters,
            exits_scope=exits,
        )
        self._operators[operator] = known
        return known

    def _leave_scope(self, state: ThreadState, end: int) -> None:
        if not state.scopes:
            return
        scope: Scope = state.scopes.pop()
        state.depth = scope.depth
        if not self._filter.wanted(scope.name):
            self._recorder.coverage["filtered"] += 1
            return
        state.journal.append(
            int(RecordKind.OP),
            int(OpScope.user),
            scope.depth,
            self._recorder.intern(scope.name),
            scope.start,
            end,
            NO_SEQUENCE,
            scope.step,
            scope.module,
            0,
            0,
            scope.phase,
            0,
            0,
        )

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        key: list[Any] = []
        for argument in args:
            if isinstance(argument, torch.Tensor):
                key.append(_kind(argument))
            elif isinstance(argument, (list, tuple)):
                key.extend(map(_kind, _tensors(argument)))
        if not key:
            device = kwargs.get("device")
            return self._recorder.intern(f"\t\t{device}") if device is not None else 0
        whole = tuple(key)
        found = self._signatures.get(whole)
        if found is None:
            shapes = " ".join(str(list(shape)) for shape, _, _ in whole)
            dtypes = " ".join(str(dtype).removeprefix("torch.") for _, dtype, _ in whole)
            text = f"{shapes}\t{dtypes}\t{whole[0][2]}"
            found, exact = self._recorder.store.intern_signature(text)
            # A text past the bound is interned again, and counted again.
            if exact:
                self._signatures[whole] = found
        return found


def _kind(tensor: torch.Tensor) -> tuple[Any, torch.dtype, torch.device]:
    """Returns shape, data type and device; a nested tensor has no shape."""
    return () if tensor.is_nested else tensor.shape, tensor.dtype, tensor.device


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors of a list and of lists within it."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
