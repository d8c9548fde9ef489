"""Records optimizers that are made again for each step, so that their moments are never used."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from ...format.loop_names import RENEWED_OPTIMIZER
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import program_place
from .fresh_optimizers import is_plain, tensor_hash

_IN_A_ROW = 5
"""Optimizers of the same parameters that stepped once each, before that is recorded."""

_MOMENTS = ("betas", "momentum", "alpha")
"""Settings of rules that keep something from step to step."""


class RenewedOptimizers:
    """Writes a value named RENEWED_OPTIMIZER for the first step of an optimizer whose parameters
    had _IN_A_ROW others before it."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._stepped: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._held: weakref.ref[Any] | None = None  # first parameter of what stepped last
        self._count = 0  # that stepped once
        self._began = 0  # hash of the first parameter as the last one stepped

    def stepping(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps."""
        held = next((one for group in optimizer.param_groups for one in group["params"]), None)
        known = self._stepped.get(id(optimizer)) is optimizer  # a wrapper keeps nothing of its own
        if known or held is None or self._held is None or self._held() is not held:
            self._count = 0
        elif any(optimizer.defaults.get(name) for name in _MOMENTS) and not optimizer.state:
            self._count += not self._begins_alike(held)
            if self._count >= _IN_A_ROW and self._recorder.active:
                place = program_place(caller(), self._is_library)
                name = f"{RENEWED_OPTIMIZER}{place}/{type(optimizer).__name__}"
                self._recorder.value(name, 1.0)
        self._stepped[id(optimizer)] = optimizer
        self._held = None if held is None else weakref.ref(held)

    def _begins_alike(self, held: Any) -> bool:
        """Whether the program has set a parameter back to what it was before the last step."""
        if not is_plain(held):
            return False
        with self._recorder.own_torch(), torch.no_grad():
            before, self._began = self._began, tensor_hash(held)
        return before == self._began


def _hook(context: HookContext) -> None:
    renewed = RenewedOptimizers(context.recorder, context.stacks.is_library)
    context.patches.before_steps(renewed.stepping)


HOOK = Hook("optimizers that are made again", _hook)
