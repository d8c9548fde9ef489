"""Records steps of optimizers on gradients of a scaled loss that nothing has unscaled.

A loss that `GradScaler.scale` returned went into backward. Then the optimizer's own step was
called, not the scaler's, and the gradients are as that backward left them.
"""

from __future__ import annotations

import weakref
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

from ...format.loop_names import SCALED_STEP
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from ..training.device_readback import DeviceReadback
from ..training.thread_gradients import ThreadGradients

_MAX_LOSSES = 8
_MAX_GRADIENTS = 3
"""Of an optimizer, those that are compared."""


class ScaledLosses:
    """Writes a value named SCALED_STEP for each such step, from an optimizer's second one on, while
    a single thread trains."""

    def __init__(self, recorder: Recorder, stacks: Stacks, threads: ThreadGradients) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._scalers: weakref.WeakSet[GradScaler] = weakref.WeakSet()
        self._losses: list[weakref.ref[torch.Tensor]] = []
        self._scaled = self._plain = False  # losses that went into backward since the last step
        self._first: weakref.WeakKeyDictionary[Optimizer, Trained] = weakref.WeakKeyDictionary()
        self._left: dict[int, tuple[int, int]] = {}  # gradients, as the last backward left them
        self._threads = threads
        self.readback = DeviceReadback()

    def scaled(self, scaler: GradScaler, outputs: Any) -> None:
        """Keeps what a scaler has scaled."""
        if vars(scaler).get("_scale") is None:  # it is not in use
            return
        self._scalers.add(scaler)
        losses = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        self._losses += [weakref.ref(one) for one in losses if isinstance(one, torch.Tensor)]
        del self._losses[:-_MAX_LOSSES]

    def backward(self, args: tuple[Any, ...]) -> None:
        """Looks at the losses of a backward; `args` of the engine."""
        if not self._scalers:
            return
        known = [one() for one in self._losses]
        roots = args[0] if args and isinstance(args[0], tuple) else ()
        if roots and all(any(one is root for one in known) for root in roots):
            self._scaled = True
        else:
            self._plain = True

    def backward_ended(self) -> None:
        """Notes gradients as a backward has left them."""
        if not self._scaled:
            return
        with self._threads.alone() as alone:
            every = (one for some in self._first.values() for one in some) if alone else ()
            self._left = {id(one): identity(one) for one in every}

    def clips(self) -> bool:
        """Returns whether gradients are clipped as a backward with a scaled loss has left them."""
        return bool(self._left) and all(map(self._is_left, list(self._first)))

    def steps(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps."""
        if not self._scalers:
            return
        scaled, plain = self._scaled, self._plain
        self._scaled = self._plain = False
        if scaled and not plain and self._is_direct(optimizer) and self._is_left(optimizer):
            self._write(optimizer)

    def _is_direct(self, optimizer: Optimizer) -> bool:
        if getattr(optimizer, "grad_scale", None) is not None:  # a fused one unscales itself
            return False
        known = (vars(one).get("_per_optimizer_states", {}) for one in self._scalers)
        states = [found[id(optimizer)] for found in known if id(optimizer) in found]
        return all(one["stage"] is OptState.READY for one in states)

    def _is_left(self, optimizer: Optimizer) -> bool:
        """Returns whether the gradients are as backward left them."""
        with self._threads.alone() as alone:
            if not alone:
                return False
            first = self._first.get(optimizer)
            if first is None:
                self._first[optimizer] = first_trained(optimizer)
                return False
            return bool(first) and all(self._left.get(id(one)) == identity(one) for one in first)

    def _write(self, optimizer: Optimizer) -> None:
        recorder = self._recorder
        if not recorder.active or len(self._scalers) != 1:
            return
        place = program_place(caller(), self._is_library)
        name, step = f"{SCALED_STEP}{place}/{type(optimizer).__name__}", recorder.step
        scale = vars(next(iter(self._scalers)))["_scale"]
        with recorder.own_torch():
            self.readback.enqueue(scale, lambda one: recorder.value(name, float(one), step))
            self.readback.drain(wait=False)


Trained = list[weakref.ref[torch.Tensor]]
"""Parameters. Weakly: an optimizer may get others, as where points are added to a scene."""


def first_trained(optimizer: Optimizer) -> Trained:
    """Returns the first parameters that have a gradient."""
    every = (one for group in optimizer.param_groups for one in group["params"])
    trained = (weakref.ref(one) for one in every if one.grad is not None)
    return [*islice(trained, _MAX_GRADIENTS)]


def identity(reference: weakref.ref[torch.Tensor]) -> tuple[int, int]:
    """Returns which tensor a gradient is, and how often it was changed in place."""
    parameter = reference()
    gradient = None if parameter is None else parameter.grad
    if gradient is None:
        return 0, 0
    return id(gradient), 0 if gradient.is_inference() else gradient._version


def _hook(context: HookContext) -> None:
    recorder, patches = context.recorder, context.patches
    losses = context.share(ScaledLosses(recorder, context.stacks, context.get(ThreadGradients)))
    patches.also_undo(partial(losses.readback.finish, recorder))
    patches.ends(
        GradScaler,
        "scale",
        lambda scaler, *_, **__: scaler,
        losses.scaled,
        lost="losses that a gradient scaler scales",
    )
    patches.before_steps(losses.steps)


HOOK = Hook("scaled losses", _hook)
