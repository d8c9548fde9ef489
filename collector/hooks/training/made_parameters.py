"""Records trainable parameters that the program makes within the forward of a module."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ...format.names import MADE_PARAMETER
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..graphs.node_facts import nodes_below
from ..patches import caller
from ..stacks import code_line
from .modules import Modules
from .parameters import is_sampled

_MAX_NODES = 20
"""Nodes between a new parameter's data and the parameter that it is made of."""

_TORCH = str(Path(torch.__file__).parent)


class MadeParameters:
    """Writes a value named MADE_PARAMETER for each place, at the steps at which parameters are
    sampled."""

    def __init__(self, recorder: Recorder, modules: Modules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._step = -1
        self._seen: set[str] = set()  # in this step

    def made(self, kind: type, data: Any = None, requires_grad: bool = True) -> None:
        """Looks at a parameter before it is made."""
        recorder = self._recorder
        if not requires_grad or not isinstance(data, torch.Tensor) or not recorder.active:
            return
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        step, state = recorder.step, recorder.thread()
        if state.busy or not state.in_modules or self._is_frozen(data):
            return
        if not is_sampled(step, recorder.options.sample_every):
            return
        frame = caller()
        # Layers that torch makes there are found by the modules that they are.
        if frame is None or frame.f_code.co_filename.startswith(_TORCH):
            return
        place = code_line(frame.f_code, frame.f_lineno)
        if step != self._step:
            self._step = step
            self._seen.clear()
        if place not in self._seen:
            self._seen.add(place)
            recorder.value(f"{MADE_PARAMETER}{place}/{self._source(data) or ''}", data.numel())

    def _is_frozen(self, data: torch.Tensor) -> bool:
        """Returns whether the data is a frozen parameter, or a view of one: nothing trains that."""
        base = data if data._base is None else data._base
        return not base.requires_grad and self._modules.parameter_name(base) is not None

    def _source(self, data: torch.Tensor) -> str | None:
        """Returns the name of a parameter that the data is, or is computed from; None: of none."""
        if data.grad_fn is None:
            return self._modules.parameter_name(data)
        for node in islice(nodes_below(data.grad_fn), _MAX_NODES):
            variable = getattr(node, "variable", None)
            name = None if variable is None else self._modules.parameter_name(variable)
            if name is not None:
                return name
        return None


def _hook(context: HookContext) -> None:
    recorder, patches = context.recorder, context.patches
    if not recorder.options.sample_every:
        return
    made = MadeParameters(recorder, context.get(Modules)).made
    patches.ends(torch.nn.Parameter, "__new__", made, lost=_LOST)


_LOST = "parameters that are made in a forward"
HOOK = Hook(_LOST, _hook, levels=("access", "numerics"))
