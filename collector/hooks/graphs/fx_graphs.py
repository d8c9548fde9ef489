"""Records torch.fx graphs: of `GraphModule`s, of torch.compile with its graph breaks, of models.

The first two exist and are only written. Tracing a model is optional and runs its `forward` once
more with proxies for tensors. That code may count calls or keep its arguments, so a forked copy of
the process runs it and returns only the graph.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx

from ...format.names import COMPILED, FX_BREAK, FX_UNTRACEABLE
from ...format.record_kinds import FX_NODE, GradientScope
from ...journal import clock
from ...journal.journal import RecordKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches
from ..stacks import Stacks
from ..training.modules import WRAPPED, Modules, own_class, unwrap

_MAX_NODES = 20_000
MAX_GRAPHS = 16
"""Graphs per process: a program may be compiled again for every shape."""

_TIMEOUT_S = 20.0
"""Time after which the copy is killed, seconds: it may hang on a lock of another thread."""

_WRAPPERS = frozenset(WRAPPED.values())
_OUTPUT_GRAPH = "torch._dynamo.output_graph"
_CAPTURED = "graphs that torch.compile captures, and where it breaks them"
_LOWERED = "<lambda>"
"""Class of a backend's version of a captured graph, which is recorded already."""

_Frame = tuple[str, int, str]
"""File, line, function."""

_Row = dict[str, Any]
"""name, op, target, module, frames (innermost first) and users (numbers) of a node."""


class FxGraphs:
    """Writes the rows of the fx table."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._graphs = 0
        self._patches = Patches()
        self._following = False
        self.captured: Callable[[Any, torch.fx.GraphModule], None] | None = None
        """Called with Dynamo's output graph and its module for each that goes to a backend."""
        self._is_library = Stacks(recorder.intern, 1).is_library

    def follow(self, modules: Modules) -> None:
        """Follows Dynamo from the program's first use of it on."""
        if not self._following:
            self._follow_dynamo(modules)

    def install(self, modules: Modules) -> Callable[[], None]:
        """Observes models that are called; returns the undo function."""

        def named(root: torch.nn.Module, prefix: str) -> None:
            self.follow(modules)
            self._named(root, prefix)

        modules.named = named

        def uninstall() -> None:
            modules.named = None
            self._patches.undo()

        return uninstall

    def _named(self, root: torch.nn.Module, prefix: str) -> None:
        """Records a model's graph at its first call."""
        if self._graphs >= MAX_GRAPHS or not self._recorder.active:
            return
        if _program_traces():
            return  # the program itself is tracing, not training
        model = unwrap(root)
        top = prefix.rstrip(".") or own_class(model).__name__
        if isinstance(model, torch.fx.GraphModule):
            if type(model).__name__ != _LOWERED:
                self._write(type(model).__name__, _rows_of(model.graph), prefix, top)
        elif self._recorder.options.trace_model and model._modules:
            with self._recorder.suppress_recording():
                self._write(type(model).__name__, traced(model, self._recorder), prefix, top)

    def _write(self, graph: str, rows: list[_Row], prefix: str = "", top: str = "") -> None:
        """Writes a graph. `prefix`: of its modules' names; `top`: name of the model itself."""
        recorder, instant = self._recorder, clock.now()
        self._graphs += 1
        state, around = recorder.thread(), f"{self._graphs} {graph}"
        for number, row in enumerate(rows[:_MAX_NODES]):
            frames = [f for f in row["frames"] if not self._is_library(f[0])]
            stack = "\n".join(f"{file}\t{line}\t{name}" for file, line, name in frames)
            users = " ".join(str(one) for one in row["users"] if one < _MAX_NODES)
            module = clean(row["module"])
            recorder.put(
                state,
                RecordKind.GRADIENT,
                scope=GradientScope.NODE,
                depth=FX_NODE,
                start=instant,
                aux=number,
                name=recorder.intern(row["target"]),
                extra=recorder.intern(row["name"]),
                sequence=recorder.intern(prefix + module if module else top),
                signature=recorder.intern(f"{users}\t{row['op']}\t{around}"),
                stack=recorder.intern(stack) if stack else 0,
            )

    def _follow_dynamo(self, modules: Modules) -> None:
        """Hooks torch.compile once it is in use: graphs for its backend, and graph breaks."""
        if _OUTPUT_GRAPH not in sys.modules:
            return
        self._following = True
        kind = optional(_OUTPUT_GRAPH, "OutputGraph", _CAPTURED)
        if kind is None:
            return

        def compiled(output: Any, module: torch.fx.GraphModule) -> None:
            if self.captured is not None:
                self.captured(output, module)
            if self._graphs < MAX_GRAPHS:
                prefix, rows = _prefix(modules, _compiled(output)), _rows_of(module.graph)
                self._write(_name(output), rows, prefix, prefix.rstrip("."))

        def broken(output: Any, reason: Any) -> None:
            if self._graphs < MAX_GRAPHS and getattr(reason, "graph_break", False):
                row = _single(FX_BREAK, str(reason.reason), _frames(reason.user_stack))
                self._write(_name(output), [row])

        self._before(kind, "call_user_compiler", lambda given: compiled(given[0], given[1]))
        self._before(kind, "compile_subgraph", lambda given: broken(given[0], _reason(given)))

    def _before(self, kind: Any, name: str, look: Callable[[tuple[Any, ...]], None]) -> None:
        def begin(*arguments: Any, **settings: Any) -> None:
            if not self._recorder.closed:
                look((*arguments, *settings.values()))

        self._patches.ends(kind, name, begin, lost=_CAPTURED)


forking = False
"""True while a fork makes the copy that traces and records nothing."""


def _program_traces() -> bool:
    """Returns True while the program itself traces a model with torch.fx."""
    flag = optional("torch.fx._symbolic_trace", "_is_fx_tracing_flag", "")
    if flag is not None:
        return bool(flag)
    # torch 2.15 has the flag by thread, behind this function, which leaves out torch.export.
    lost = "which calls of models are traces of the program's own"
    traces = optional("torch.fx._symbolic_trace", "is_fx_symbolic_tracing", lost)
    try:
        return traces is not None and bool(traces() or torch.compiler.is_compiling())
    except NameError:  # the function is there, the flag that it reads is not
        return False


def traced(model: torch.nn.Module, recorder: Recorder) -> list[_Row]:
    """Returns the nodes of a trace of the model, made in a copy of this process."""
    global forking
    reading, writing = os.pipe()
    try:
        forking = True
        with warnings.catch_warnings():  # of threads that are not in the copy; see TIMEOUT_S
            warnings.simplefilter("ignore", DeprecationWarning)
            copy = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        return [_single(FX_UNTRACEABLE, f"the process could not be copied: {error}")]
    finally:
        forking = False
    if copy == 0:
        try:
            _isolate(recorder, writing)
            _answer(model, writing)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _received(copy, reading)
    finally:
        os.close(reading)


class _Nowhere:
    """A journal that keeps nothing."""

    def _nothing(self, *fields: Any) -> None:
        pass

    append = append_all = push_open = pop_open = _nothing


def _isolate(recorder: Recorder, writing: int) -> None:
    """Detaches the copy from all open files, also the journal's: they are the program's."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the program's handlers
    silence = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (silence, writing):
            with contextlib.suppress(OSError):  # the listing itself, closed by now
                os.fstat(number)
                os.dup2(silence, number)
    nowhere: Any = _Nowhere()
    recorder.thread().journal = nowhere
    recorder.active = False
    torch.set_num_threads(1)  # a fork copies no other threads


def _answer(model: torch.nn.Module, writing: int) -> None:
    """Traces the model in the copy, and sends the graph or the error."""
    try:
        rows = _rows_of(_Tracer().trace(model))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        found = [(f.filename, f.lineno or 0, f.name) for f in reversed(frames)]
        rows = [_single(FX_UNTRACEABLE, f"{type(error).__name__}: {error}"[:500], found)]
    with open(writing, "w") as pipe:
        json.dump(rows, pipe)


def _received(copy: int, reading: int) -> list[_Row]:
    parts, until = [], time.monotonic() + _TIMEOUT_S
    while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            break
        parts.append(part)
    else:
        os.kill(copy, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the program waits for any child itself
        os.waitpid(copy, 0)
    try:
        rows: list[_Row] = json.loads(b"".join(parts))
    except ValueError:
        return [
            _single(FX_UNTRACEABLE, f"the trace did not come to an end within {_TIMEOUT_S:g} s")
        ]
    return rows


class _Tracer(torch.fx.Tracer):
    record_stack_traces = True

    def call_module(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        # Calls neither the program's hooks nor the recorder's.
        return super().call_module(m, m.forward, args, kwargs)


def _rows_of(graph: torch.fx.Graph) -> list[_Row]:
    """Returns the nodes of a graph, in its order."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    return [
        {
            "name": node.name,
            "op": node.op,
            "target": node.target if isinstance(node.target, str) else _function(node.target),
            "module": _module(node),
            "frames": _parsed(node.stack_trace or ""),
            "users": [numbers[user] for user in node.users],
        }
        for node in graph.nodes
    ]


def _single(op: str, why: str, frames: Iterable[_Frame] = ()) -> _Row:
    return {
        "name": op,
        "op": op,
        "target": why,
        "module": "",
        "frames": list(frames),
        "users": [],
    }


def _function(target: Any) -> str:
    name = getattr(target, "__name__", None) or str(target)
    module = getattr(target, "__module__", None) or ""
    return f"{module}.{name}" if module and not module.startswith("_") else name


def _module(node: torch.fx.Node) -> str:
    """Returns torch.fx's path of the module in which a node was made."""
    around = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(around.values()))[0]) if around else ""
    return str(node.target) if node.op == "call_module" and not path else path


def clean(path: str) -> str:
    """Returns a path of torch.fx or Dynamo as a module path: `L['self'].blocks[0]` is blocks.0."""
    path = re.sub(r"^[LG]\['\w+'\]\.?", "", path)
    path = re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", path)
    skipped = _WRAPPERS | {"_modules", ""}
    return ".".join(part for part in path.split(".") if part not in skipped)


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def _parsed(text: str) -> list[_Frame]:
    """Returns the frames of a formatted stack, innermost first."""
    found = [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(text)]
    return found[::-1]


def _frames(stack: Any) -> list[_Frame]:
    return [(f.filename, f.lineno or 0, f.name) for f in reversed(list(stack or ()))]


def _reason(given: tuple[Any, ...]) -> Any:
    return next((one for one in given if hasattr(one, "graph_break")), None)


def _compiled(output: Any) -> torch.nn.Module | None:
    """Returns the module whose code is captured; None: a function's code."""
    values = output.local_scope.values()
    return next((one for one in values if isinstance(one, torch.nn.Module)), None)


def _name(output: Any) -> str:
    model, code = _compiled(output), str(output.root_tx.f_code.co_name)
    return f"{code if model is None else type(unwrap(model)).__name__}{COMPILED}"


def _prefix(modules: Modules, model: torch.nn.Module | None) -> str:
    """Returns the prefix of a model's parameter names; empty unless part of another or repeated."""
    if model is not None:
        for name, parameter in unwrap(model).named_parameters():
            whole = modules.parameter_name(parameter) or ""
            if whole.endswith(own := clean(name)):
                return whole[: -len(own)]
    return ""


def _hook(context: HookContext) -> Undo:
    return context.share(FxGraphs(context.recorder)).install(context.get(Modules))


HOOK = Hook("torch.fx graphs", _hook)
