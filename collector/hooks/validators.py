"""Calls the user's validators; installs nothing if there are none.

The program must not notice: validators get copies, random generators are restored, and operators of
a validator are not recorded. Validators of collectives run when the operation completes: waiting
for it would change the schedule.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from ..format.marks import ValidatorVerdict
from ..journal import clock
from ..recorder.private_names import optional
from ..recorder.recorder import Recorder
from ..validation.validators import ENTRY_POINTS, LISTENERS, LOADED, VALIDATORS, Event, Validator
from . import dispatch_modes
from .base import Hook, HookContext, Undo
from .collectives.collectives import _flatten, _work, plan_for
from .graphs import compiled_calls
from .graphs.fx_graphs import FxGraphs
from .not_compiled import run_as_it_is

UNFUSED = ("eager", "aot_eager", "aot_eager_decomp_partition")
"""Backends of torch.compile that run each operator separately, so that validators see it."""

MAX_MESSAGES = 50
"""Distinct messages kept per process; each is a text of the run."""
MAX_MESSAGE_LENGTH = 200


class Validators:
    """The validators of one process; `mode` makes a dispatch mode of an object with `dispatch`."""

    def __init__(self, recorder: Recorder, mode: Callable[[Validators], Any]) -> None:
        self._recorder = recorder
        self._make_mode = mode
        self._process = os.getpid()
        self._modes: list[Any] = []
        self._operators: dict[Any, list[Validator]] = {}
        self._by_name: dict[str, list[Validator]] = {}
        self._classes: list[Validator] = []
        self._handle: Any = None
        self._ran: set[int] = set()
        self._passed_over: set[int] = set()
        self._inside = compiled_calls.CompiledCalls(
            recorder,
            lambda kind: any(one.compiled for one in self._validators_for(kind)),
            self._compiled_call,
            self._not_shown,
        )
        self._messages: set[str] = set()

    def install(self) -> Callable[[], None]:
        """Attaches registered validators, also of installed packages, now and later."""
        self._load()
        for one in VALIDATORS:
            self._attach(one)
        LISTENERS.append(self._attach)
        return self._stop

    def _load(self) -> None:
        for entry in metadata.entry_points(group=ENTRY_POINTS) if _any_installed() else ():
            if entry in LOADED:
                continue
            LOADED.add(entry)
            try:
                found = entry.load()
                if callable(found):
                    found()
            except Exception as error:  # the program may not even use the package
                text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_MESSAGE_LENGTH]
                mark = ValidatorVerdict("raised", entry.name, ENTRY_POINTS, text)
                self._recorder.mark(mark.encode())

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Validates the calling thread's operators inside the context."""
        mode = self._make_mode(self) if self._by_name else None
        if mode is not None:
            dispatch_modes.push(mode)
        try:
            yield
        finally:
            dispatch_modes.pop(mode)

    def _attach(self, one: Validator) -> None:
        with self._recorder.contain_errors():
            if isinstance(one.target, type):
                self._classes.append(one)
                if self._handle is None:
                    run_as_it_is(Validators._forward)
                    self._handle = nn_module.register_module_forward_hook(
                        self._forward, with_kwargs=True
                    )
                return
            if not self._by_name:
                self._modes.append(self._make_mode(self))
                dispatch_modes.push(self._modes[-1])
            self._by_name.setdefault(one.target, []).append(one)
            self._operators.clear()

    def _stop(self) -> None:
        LISTENERS.remove(self._attach)
        self._inside.stop()
        if self._handle is not None:
            self._handle.remove()
        for mode in self._modes:
            dispatch_modes.pop(mode)
        recorder = self._recorder
        if recorder.folder is None or self._process != os.getpid():
            return
        known = [*self._classes, *(one for group in self._by_name.values() for one in group)]
        for one in known:
            if id(one) not in self._ran | self._passed_over:
                recorder.mark(ValidatorVerdict("idle", one.name, one.place).encode())

    # validation ---------------------------------------------------------------------

    def dispatch(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the operator, and shows it to its validators."""
        wanted = self._operators.get(operator)
        if wanted is None:
            wanted = self._operators[operator] = self._wanted(operator)
        if not wanted or self._muted():
            return operator(*args, **kwargs)
        inputs = self._copied((args, kwargs))
        start = clock.now()
        result = operator(*args, **kwargs)
        work = _work(result)
        if work is None:
            name = operator._schema.name
            self._show(wanted, name, start, inputs, lambda: result)
            return result
        plan = plan_for(operator)
        if plan is not None:
            outputs = [*_flatten(args[0])]  # collectives write to their first argument

            def completed(_: Any) -> None:
                self._show(wanted, plan.name, start, inputs, lambda: outputs)

            with contextlib.suppress(RuntimeError):  # this kind of work has no future
                work.get_future().add_done_callback(completed)
        return result

    def _wanted(self, operator: Any) -> list[Validator]:
        schema = getattr(operator, "_schema", None)
        if schema is None:
            return []
        space, _, short = schema.name.partition("::")
        plan = plan_for(operator)
        names = {schema.name, f"{space}::{short.removeprefix('_')}", plan.name if plan else ""}
        return [one for name in names for one in self._by_name.get(name, ())]

    def _forward(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            torch._dynamo.comptime.comptime(compiled_calls.capture)
            return
        if not self._muted():
            with self._recorder.contain_errors():
                self._module_call(self._classes, module, args, kwargs, output)

    def _compiled_call(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._muted():
            wanted = [one for one in self._classes if one.compiled]
            self._module_call(wanted, module, args, kwargs, output)

    def _module_call(
        self, among: list[Validator], module: torch.nn.Module, args: Any, kwargs: Any, output: Any
    ) -> None:
        step = self._recorder.step
        wanted = [one for one in among if one.looks_at(module, step)]
        if wanted:
            inputs = self._copied((args, kwargs))
            name = type(module).__name__
            self._show(wanted, name, clock.now(), inputs, lambda: output, module)

    def captured(self, output: Any, graph: torch.fx.GraphModule) -> None:
        """Reports once per validator what it cannot see of a graph captured by torch.compile."""
        if output.export or not (self._classes or self._by_name):
            return
        looked_at = self._inside.looked_at(graph)
        for name, kind in compiled_calls.modules_in(graph):
            for one in self._validators_for(kind):
                if not one.compiled:
                    self._pass_over(one, name)
                elif name not in looked_at:
                    self._pass_over(one, f"{name}: {self._inside.reason(name)}")
        if compiled_calls.backend_of(output) not in UNFUSED:
            called = compiled_calls.functions_in(graph)
            for target, group in self._by_name.items():
                space, _, short = target.rpartition("::")
                for one in group if space and short.strip("_") in called else ():
                    self._pass_over(one, "")

    def _not_shown(self, kind: type, why: str) -> None:
        for one in self._validators_for(kind):
            if one.compiled:
                self._pass_over(one, why)

    def _validators_for(self, kind: type) -> list[Validator]:
        """Returns the validators of a class of modules."""
        return [
            one
            for one in self._classes
            if isinstance(one.target, type) and issubclass(kind, one.target)
        ]

    def _pass_over(self, one: Validator, message: str) -> None:
        if id(one) not in self._passed_over:
            self._passed_over.add(id(one))
            self._mark("compiled", one, message)

    # how -----------------------------------------------------------------------------------

    def _muted(self) -> bool:
        recorder = self._recorder
        if recorder.closed or not recorder.active:
            return True
        try:
            return bool(recorder.thread().busy)
        except Exception as error:
            recorder.failed(error)
            return True

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Suppresses recording and gradients inside the context; restores random generators."""
        cuda: Any = torch.cuda
        devices = [cuda.current_device()] if cuda.is_initialized() else []
        with self._recorder.suppress_recording(), torch.no_grad(), torch.random.fork_rng(devices):
            yield

    def _copied(self, values: Any) -> Any:
        change = optional("torch.utils._pytree", "tree_map_only", "what validators look at")
        if change is None:
            return None
        try:
            with self._quiet():
                return change(torch.Tensor, torch.clone, values)
        except Exception as error:
            self._recorder.failed(error)
            return None

    def _show(
        self,
        wanted: list[Validator],
        name: str,
        start: int,
        inputs: Any,
        outputs: Callable[[], Any],
        module: Any = None,
    ) -> None:
        recorder = self._recorder
        if inputs is None or recorder.closed:
            return
        args, keywords = inputs
        rank = int(recorder.process.get("rank", 0))
        event = Event(name, rank, recorder.step, start, clock.now(), keywords, module)
        with recorder.contain_errors():
            results = self._copied(outputs())
            for one in wanted:
                if id(one) not in self._ran:
                    self._ran.add(id(one))
                    recorder.mark(ValidatorVerdict("called", one.name, one.place).encode())
                self._judge(one, event, args, results)

    def _judge(self, one: Validator, event: Event, inputs: Any, outputs: Any) -> None:
        recorder = self._recorder
        try:
            with self._quiet():
                result = one.function(event, inputs, outputs)
                number = None if result is None else float(result)
        except AssertionError as error:
            self._mark("failed", one, str(error))
        except Exception as error:  # a validator must not end the program
            self._mark("raised", one, f"{type(error).__name__}: {error}")
        else:
            if isinstance(result, bool):
                if not result:
                    self._mark("failed", one, "")
            elif number is not None:
                recorder.value(f"validator/{one.name}", number)

    def _mark(self, verdict: str, one: Validator, message: str) -> None:
        short = " ".join(message.split())[:MAX_MESSAGE_LENGTH]
        if short and (short in self._messages or len(self._messages) < MAX_MESSAGES):
            self._messages.add(short)
        else:
            short = ""
        self._recorder.mark(ValidatorVerdict(verdict, one.name, one.place, short).encode())


def _any_installed() -> bool:
    """Returns whether some package may have validators: to parse all entry points takes longer."""
    texts = (package.read_text("entry_points.txt") for package in metadata.distributions())
    return any(ENTRY_POINTS in text for text in texts if text)


def _hook(context: HookContext) -> Undo:
    validators = context.get(Validators)
    context.get(FxGraphs).captured = validators.captured
    return validators.install()


HOOK = Hook("validators", _hook)
