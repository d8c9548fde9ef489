"""Passes calls of modules inside compiled code to the validators that ask for them.

torch.compile drops the hooks of modules that it captures. For such validators, an operator that
takes the call's tensors is inserted into the captured graph. It returns nothing and breaks no
graph; when the compiled code runs, it gets the tensors that the code computed. Calls that cannot be
shown are reported with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import FrameType
from typing import Any, NamedTuple, cast

import torch

from ...recorder.recorder import Recorder
from ..cuda_graphs import capturing
from .fx_graphs import clean

OPERATOR, OPERATOR_IN_GRAPHS = "lanescope::look", "lanescope.look.default"

BACKENDS = ("inductor", "eager", "aot_eager", "aot_eager_decomp_partition", "cudagraphs")
"""Backends known to run an unknown operator unchanged."""


class Slot(NamedTuple):
    """Placeholder of a tensor: its position in the operator's list."""

    number: int


class _Call(NamedTuple):
    """A captured call of a module."""

    name: str  # of the module in the graph
    kind: type
    root: str  # variable of the captured function
    steps: tuple[tuple[bool, Any], ...]  # from `root` to the module: (is attribute, name or index)
    code: tuple[str, str, int]  # file, name and line of that function
    values: tuple[Any, Any, Any]  # arguments, keywords, output, with slots for tensors

    def filled(self, tensors: list[torch.Tensor]) -> tuple[Any, Any, Any]:
        """Returns arguments, keywords and output, with tensors in their slots."""
        args, keywords, output = (_filled(value, tensors) for value in self.values)
        return args, keywords, output

    def module(self, frame: FrameType | None) -> torch.nn.Module | None:
        """Finds the module from the captured function's frame, as its guards do."""
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
    """The reason why a call cannot be shown."""


Shown = Callable[[torch.nn.Module, Any, Any, Any], None]
"""(module, arguments, keywords, output)"""


class CompiledCalls:
    """Inserts the operator into graphs, and passes on its tensors."""

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
        self._calls: list[_Call] = []
        self._reasons: dict[str, str] = {}
        ACTIVE.append(self)

    def stop(self) -> None:
        """Stops; the operator does nothing any more in compiled code."""
        ACTIVE.remove(self)

    def looked_at(self, graph: torch.fx.GraphModule) -> set[str]:
        """Returns the modules of a captured graph that are followed by the operator."""
        numbers = [n.args[0] for n in graph.graph.nodes if str(n.target) == OPERATOR_IN_GRAPHS]
        return {self._calls[number].name for number in numbers}

    def reason(self, name: str) -> str:
        """Returns why a module of a captured graph has no operator."""
        return self._reasons.get(name, "its hooks were not captured")

    def capture(self, context: Any) -> None:
        """Inserts the operator after a module while Dynamo captures its hook."""
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
        except Exception as error:  # another version of torch may differ
            self._reasons[name] = f"{type(error).__name__}: {error}"

    def _insert(self, output: Any, context: Any, place: tuple[str, type, str, Any]) -> None:
        if output.export:
            raise Unfollowed("it is exported")
        if output.current_tracer.parent is not None:
            raise Unfollowed("it is in a region that is captured apart, as a checkpoint is")
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise Unfollowed("it is inside of a transform of torch.func")
        if (backend := backend_of(output)) not in BACKENDS:
            raise Unfollowed(f"the effect of the backend {backend} on the operator is unknown")
        code = output.root_tx.f_code
        if code.co_name.startswith("torch_dynamo_resume_in"):
            raise Unfollowed("the graph broke inside of it")
        tensors: list[Any] = []
        arguments, keywords, made = (
            _with_slots(_variable(context, one), tensors) for one in ("args", "kwargs", "output")
        )
        where = (code.co_filename, code.co_name, code.co_firstlineno)
        _define()
        number = len(self._calls)
        self._calls.append(_Call(*place, where, (tuple(arguments), keywords, made)))
        look = torch.ops.lanescope.look.default
        output.create_proxy("call_function", look, (number, tensors), {})

    def look(self, number: int, tensors: list[torch.Tensor], frame: FrameType) -> None:
        """Shows a call once compiled code reaches its end."""
        with self._recorder.contain_errors():
            call = self._calls[number]
            if capturing():
                # Capture computes nothing, and a replay does not call Python.
                self._passed_over(call.kind, f"{call.name}: it is replayed as a CUDA graph")
                return
            module = call.module(frame)
            if module is not None:
                self._shown(module, *call.filled(tensors))


ACTIVE: list[CompiledCalls] = []
"""The instance of the recording, if any."""


def capture(context: Any) -> None:
    """Inserts the operator; Dynamo calls this while it captures a module's hook."""
    for one in ACTIVE:
        one.capture(context)


def _look(number: int, tensors: list[torch.Tensor]) -> None:
    for one in ACTIVE:
        one.look(number, tensors, sys._getframe(1))


@cache
def _define() -> None:
    """Defines the operator, once Dynamo is loaded: loading takes a second."""
    known: Any = torch  # which has no types here
    library = known.library.Library("lanescope", "FRAGMENT")
    library.define("look(int number, Tensor[] tensors) -> ()")
    library.impl("look", known.compiler.disable(_look), "CompositeExplicitAutograd")
    known.library.register_fake(OPERATOR, lambda number, tensors: None, lib=library)
    known.fx.node.has_side_effect(known.ops.lanescope.look.default)
    _KEPT.append(library)


_KEPT: list[Any] = []
"""Libraries of operators: an operator is deleted with its library."""


def modules_in(graph: torch.fx.GraphModule) -> Iterator[tuple[str, type]]:
    """Yields name and class of modules with operators in a graph."""
    for node in _nodes(graph):
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            if isinstance(kind, type):
                yield clean(path), kind


def functions_in(graph: torch.fx.GraphModule) -> set[str]:
    """Returns names of the functions in a graph: softmax for torch.softmax and x.softmax()."""
    return {str(getattr(node.target, "__name__", node.target)).strip("_") for node in _nodes(graph)}


def backend_of(output: Any) -> str:
    """Returns the name of the backend that compiles a graph."""
    function = output.compiler_fn
    owner = getattr(function, "__self__", None)  # of DDP, which splits graphs at its buckets
    function = getattr(owner, "backend_compile_fn", function)
    return str(getattr(function, "_compiler_name", None) or getattr(function, "__name__", ""))


def _nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yields the nodes of a graph and of the graphs within it."""
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _variable(context: Any, name: str) -> Any:
    return context.get_local(name)._i_will_not_complain_if_bc_breaks_VariableTracker()


def _way_to(source: Any) -> tuple[str, tuple[tuple[bool, Any], ...]]:
    """Returns where Dynamo found a module: a variable, and the steps from there."""
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


def _with_slots(variable: Any, tensors: list[Any]) -> Any:
    """Returns a value known to Dynamo, with a slot for each tensor."""
    if type(variable).__name__.startswith("Lazy"):
        if not variable.is_realized():
            return None  # the module did not read it
        variable = variable.realize()
    kind = type(variable).__name__
    if kind == "TensorVariable":
        proxy = variable.as_proxy()
        if variable.python_type() not in (torch.Tensor, torch.nn.Parameter):
            raise Unfollowed(f"it works on {variable.python_type().__name__}")
        tensors.append(proxy)
        return Slot(len(tensors) - 1)
    if kind in ("TupleVariable", "ListVariable"):
        found = [_with_slots(one, tensors) for one in variable.items]
        return tuple(found) if kind == "TupleVariable" else found
    if kind == "ConstDictVariable":
        return {
            key.vt.as_python_constant(): _with_slots(value, tensors)
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
