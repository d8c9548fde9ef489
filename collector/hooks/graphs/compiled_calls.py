"""Calls of modules inside of compiled code, for the validators that ask for them.

torch.compile drops the hooks of the modules that it captures. Where a validator wants to look at
them all the same, an operator that takes the call's tensors is put into the captured graph. It
returns nothing and breaks no graph; when the compiled code runs, it shows what that code computed.
What cannot be shown is said, never guessed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any, NamedTuple, cast

import torch

from ...recorder.recorder import Recorder
from .fx_graphs import clean

OPERATOR, OPERATOR_IN_GRAPHS = "lanescope::look", "lanescope.look.default"

BACKENDS = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs")
"""That run an operator which they do not know as it is. Of others nobody knows."""


class Slot(NamedTuple):
    """Stands for a tensor of the operator's list."""

    number: int


class Call(NamedTuple):
    """A call of a module that was captured."""

    name: str  # of the module, as the graph has it
    kind: type
    root: str  # the variable of the captured function that leads to it
    steps: tuple[tuple[bool, Any], ...]  # from there: an attribute of this name, or an item
    code: tuple[str, str, int]  # file, name and line of that function
    values: tuple[Any, Any, Any]  # arguments, keywords, output, with slots for tensors

    def filled(self, tensors: list[torch.Tensor]) -> tuple[Any, Any, Any]:
        """Its arguments, keywords and output."""
        args, keywords, output = (_filled(value, tensors) for value in self.values)
        return args, keywords, output

    def module(self, frame: FrameType | None) -> torch.nn.Module | None:
        """The module, found from the captured function's frame as its guards find it."""
        while frame is not None:
            code = frame.f_code
            if (code.co_filename, code.co_name, code.co_firstlineno) == self.code:
                variables = {**frame.f_globals, **frame.f_locals}
                found: Any = variables.get(self.root)
                for attribute, key in self.steps:
                    found = getattr(found, key, None) if attribute else found[key]
                return cast(torch.nn.Module, found) if type(found) is self.kind else None
            frame = frame.f_back
        return None


class Unfollowed(Exception):
    """Why a call cannot be looked at."""


Shown = Callable[[torch.nn.Module, Any, Any, Any], None]
"""(module, arguments, keywords, output)"""


class CompiledCalls:
    """Puts the operator into graphs, and hands on what it sees."""

    def __init__(
        self,
        recorder: Recorder,
        wanted: Callable[[type], bool],
        shown: Shown,
        passed_over: Callable[[type, str], None],
    ) -> None:
        self._recorder = recorder
        self._wanted = wanted
        self._shown = shown
        self._passed_over = passed_over
        self._calls: list[Call] = []
        self._reasons: dict[str, str] = {}
        ACTIVE.append(self)

    def stop(self) -> None:
        """Compiled code that has the operator goes on; it does nothing then."""
        ACTIVE.remove(self)

    def looked_at(self, graph: torch.fx.GraphModule) -> set[str]:
        """The modules of a captured graph that have the operator behind them."""
        numbers = [n.args[0] for n in graph.graph.nodes if str(n.target) == OPERATOR_IN_GRAPHS]
        return {self._calls[number].name for number in numbers}

    def reason(self, name: str) -> str:
        """Why a module of a captured graph has none."""
        return self._reasons.get(name, "its hooks were not captured")

    def capture(self, context: Any) -> None:
        """While Dynamo captures the hook of a module: put the operator behind it."""
        name = ""
        try:
            module = _variable(context, "module")
            kind = module.python_type()
            if not self._wanted(kind):
                return
            root, steps = _way_to(module.source)
            name = ".".join(str(key) for _, key in steps if key != "_modules")
            translator = context._i_will_not_complain_if_bc_breaks_InstructionTranslator()
            self._insert(translator.output, context, (name, kind, root, steps))
        except Unfollowed as error:
            self._reasons[name] = str(error)
        except Exception as error:  # of a version of torch that has it otherwise
            self._reasons[name] = f"{type(error).__name__}: {error}"

    def _insert(self, output: Any, context: Any, place: tuple[str, type, str, Any]) -> None:
        if output.export:
            raise Unfollowed("it is exported")
        if output.current_tracer.parent is not None:
            raise Unfollowed("it is in a region that is captured apart, as a checkpoint is")
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise Unfollowed("it is inside of a transform of torch.func")
        if (backend := backend_of(output)) not in BACKENDS:
            raise Unfollowed(f"nobody knows what the backend {backend} makes of the operator")
        code = output.root_tx.f_code
        if code.co_name.startswith("torch_dynamo_resume_in"):
            raise Unfollowed("the graph broke inside of it")
        tensors: list[Any] = []
        arguments, keywords, made = (
            _taken(_variable(context, one), tensors) for one in ("args", "kwargs", "output")
        )
        where = (code.co_filename, code.co_name, code.co_firstlineno)
        _define()
        number = len(self._calls)
        self._calls.append(Call(*place, where, (tuple(arguments), keywords, made)))
        look = torch.ops.lanescope.look.default
        output.create_proxy("call_function", look, (number, tensors), {})

    def look(self, number: int, tensors: list[torch.Tensor], frame: FrameType) -> None:
        """The compiled code ran to where the module's call ends."""
        with self._recorder.contain_errors():
            call = self._calls[number]
            cuda: Any = torch.cuda
            if cuda.is_initialized() and cuda.is_current_stream_capturing():
                # Nothing is computed now, and what is replayed later calls nobody.
                self._passed_over(call.kind, f"{call.name}: it is replayed as a CUDA graph")
                return
            module = call.module(frame)
            if module is not None:
                self._shown(module, *call.filled(tensors))


ACTIVE: list[CompiledCalls] = []
"""That of the recording, if any."""


def capture(context: Any) -> None:
    """Called by Dynamo while it captures a module's hook."""
    for one in ACTIVE:
        one.capture(context)


def _look(number: int, tensors: list[torch.Tensor]) -> None:
    for one in ACTIVE:
        one.look(number, tensors, sys._getframe(1))


@cache
def _define() -> None:
    """Only once Dynamo is there: it takes a second to load."""
    known: Any = torch  # which has no types here
    library = known.library.Library("lanescope", "FRAGMENT")
    library.define("look(int number, Tensor[] tensors) -> ()")
    library.impl("look", known.compiler.disable(_look), "CompositeExplicitAutograd")
    known.library.register_fake(OPERATOR, lambda number, tensors: None, lib=library)
    known.fx.node.has_side_effect(known.ops.lanescope.look.default)
    KEPT.append(library)


KEPT: list[Any] = []
"""An operator lasts as long as its library."""


def modules_in(graph: torch.fx.GraphModule) -> Iterator[tuple[str, type]]:
    """Name and class of the modules that a graph has operators of."""
    for node in _nodes(graph):
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if isinstance(kind, type):
                yield clean(path), kind


def functions_in(graph: torch.fx.GraphModule) -> set[str]:
    """Names of what a graph calls: softmax of torch.softmax and of x.softmax()."""
    return {str(getattr(node.target, "__name__", node.target)).strip("_") for node in _nodes(graph)}


def backend_of(output: Any) -> str:
    """The name of what a graph is compiled with."""
    function = output.compiler_fn
    owner = getattr(function, "__self__", None)  # of DDP, which splits graphs at its buckets
    function = getattr(owner, "backend_compile_fn", function)
    return str(getattr(function, "_compiler_name", None) or getattr(function, "__name__", ""))


def _nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Those of a graph and of the graphs within it."""
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _variable(context: Any, name: str) -> Any:
    return context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker()


def _way_to(source: Any) -> tuple[str, tuple[tuple[bool, Any], ...]]:
    """Where Dynamo found a module: a variable, and the steps from there."""
    steps: list[tuple[bool, Any]] = []
    while True:
        kind = type(source).__name__
        if kind == "LocalSource":
            return source.local_name, tuple(reversed(steps))
        if kind == "GlobalSource":
            return source.global_name, tuple(reversed(steps))
        if kind == "AttrSource":
            steps.append((True, source.member))
        elif kind in ("GetItemSource", "DictGetItemSource") and isinstance(
            source.index, (int, str)
        ):
            steps.append((False, source.index))
        elif not kind.endswith("NNModuleSource"):
            raise Unfollowed("the module is not an attribute of what was compiled")
        source = source.base


def _taken(variable: Any, tensors: list[Any]) -> Any:
    """What Dynamo knows of a value, with a slot for each tensor."""
    if type(variable).__name__.startswith("Lazy"):
        if not variable.is_realized():
            return None  # nothing of the module's read it
        variable = variable.realize()
    kind = type(variable).__name__
    if kind == "TensorVariable":
        proxy = variable.as_proxy()
        if variable.python_type() not in (torch.Tensor, torch.nn.Parameter):
            raise Unfollowed(f"it works on {variable.python_type().__name__}")
        tensors.append(proxy)
        return Slot(len(tensors) - 1)
    if kind in ("TupleVariable", "ListVariable"):
        found = [_taken(one, tensors) for one in variable.items]
        return tuple(found) if kind == "TupleVariable" else found
    if kind == "ConstDictVariable":
        return {
            key.vt.as_python_constant(): _taken(value, tensors)
            for key, value in variable.items.items()
        }
    if variable.is_python_constant():
        return variable.as_python_constant()
    raise Unfollowed(f"it is called with, or returns, {variable.python_type().__name__}")


def _filled(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, Slot):
        return tensors[value.number]
    if isinstance(value, (tuple, list)):
        return type(value)(_filled(one, tensors) for one in value)
    if isinstance(value, dict):
        return {key: _filled(one, tensors) for key, one in value.items()}
    return value
