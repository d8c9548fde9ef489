"""Records optimizers that are made again for each step, so that their moments are never used, or
for as many steps each, so that these are lost each time."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from ...format.loop_names import RENEWED_AGAIN, RENEWED_OPTIMIZER
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
    had _IN_A_ROW others before it, and RENEWED_AGAIN where the one before it took several steps."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._stepped: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._held: weakref.ref[Any] | None = None  # first parameter of what stepped last
        self._count = 0  # that stepped once
        self._began = 0  # hash of the first parameter as the last one stepped
        self._steps = 0  # of the optimizer that stepped last
        self._version = self._grew = 0  # of that parameter, and what a step adds to it
        self._settings = ""

    def stepping(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps."""
        held = next((one for group in optimizer.param_groups for one in group["params"]), None)
        known = self._stepped.get(id(optimizer)) is optimizer  # a wrapper keeps nothing of its own
        if known or held is None or self._held is None or self._held() is not held:
            self._count = 0
        elif any(optimizer.defaults.get(name) for name in _MOMENTS) and not optimizer.state:
            self._count += not self._begins_alike(held)
            if self._count >= _IN_A_ROW:
                self._write(RENEWED_OPTIMIZER, optimizer, 1.0)
            elif self._steps > 1 and self._goes_on(held, optimizer):
                self._write(RENEWED_AGAIN, optimizer, float(self._steps))
        self._notes(optimizer, held, known=known)
        self._stepped[id(optimizer)] = optimizer
        self._held = None if held is None else weakref.ref(held)

    def _begins_alike(self, held: Any) -> bool:
        """Whether the program has set a parameter back to what it was before the last step."""
        if not is_plain(held):
            return False
        with self._recorder.own_torch(), torch.no_grad():
            before, self._began = self._began, tensor_hash(held)
        return before == self._began

    def _goes_on(self, held: Any, optimizer: Optimizer) -> bool:
        """Returns whether an optimizer has the settings of the one before it, and nothing but that
        one has written the parameter since."""
        grown = self._version_of(held) - self._version
        return grown == self._grew and _settings(optimizer) == self._settings

    def _notes(self, optimizer: Optimizer, held: Any, *, known: bool) -> None:
        self._steps = self._steps + 1 if known else 1
        if not known:
            self._settings = _settings(optimizer)
        version = 0 if held is None else self._version_of(held)
        if known:
            self._grew = version - self._version
        self._version = version

    def _version_of(self, held: Any) -> int:
        with self._recorder.own_torch():  # a mode of the program would see the question
            return 0 if held.is_inference() else int(held._version)

    def _write(self, prefix: str, optimizer: Optimizer, number: float) -> None:
        if self._recorder.active:
            place = program_place(caller(2), self._is_library)
            self._recorder.value(f"{prefix}{place}/{type(optimizer).__name__}", number)


def _settings(optimizer: Optimizer) -> str:
    """Returns the class, numbers and sizes of the groups of an optimizer. The words of a tensor, as
    a learning rate may be one, would take operators."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    numbers = [one for one in optimizer.defaults.items() if isinstance(one[1], (int, float))]
    return f"{type(optimizer)} {numbers} {sizes}"


def _hook(context: HookContext) -> None:
    renewed = RenewedOptimizers(context.recorder, context.stacks.is_library)
    context.patches.before_steps(renewed.stepping)


HOOK = Hook("optimizers that are made again", _hook)
