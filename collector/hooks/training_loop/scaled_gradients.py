"""Records by what the program multiplies gradients that DistributedDataParallel has averaged.

One parameter is looked at, after backward and before the optimizer's step, at the steps 0, 1, 2, 4,
8, ... that have a single backward.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial

import torch
from torch.optim import Optimizer

from ...format.loop_names import GRADIENT_FACTOR
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..cuda_graphs import capturing
from ..training.device_readback import DeviceReadback
from ..training.modules import Modules
from ..training.norms import has_norm
from ..training.parameters import is_doubling
from ..training.replication import data_parallel
from ..training.thread_gradients import ThreadGradients


class ScaledGradients:
    """Writes a value named GRADIENT_FACTOR for each such step."""

    def __init__(self, recorder: Recorder, threads: ThreadGradients) -> None:
        self._recorder = recorder
        self._threads = threads
        self._last: weakref.ref[torch.Tensor] | None = None  # parameter of the wrapper's model
        self._backwards = 0  # since the optimizer's last step
        self._norm: torch.Tensor | None = None  # of its gradient after backward
        self.readback = DeviceReadback()

    def began(self, module: torch.nn.Module) -> None:
        """Chooses a parameter of a model whose gradients are averaged in this step."""
        if not is_doubling(self._recorder.step):
            self._last = None
            return
        wrapper = data_parallel(module)
        if wrapper is None:
            return
        with self._recorder.own_torch():
            trained = (one for one in wrapper.module.parameters() if one.requires_grad)
            last = deque(trained, maxlen=1)
        averages = wrapper.require_backward_grad_sync and not wrapper._comm_hooks
        self._last = weakref.ref(last[0]) if averages and last else None

    def backward_ended(self) -> None:
        """Takes the norm of the gradient as backward has left it."""
        if self._last is not None:
            self._backwards += 1
            self._norm = self._current() if self._backwards == 1 else None

    def steps(self, optimizer: Optimizer) -> None:
        """Compares the norm of the gradient that the optimizer gets."""
        parameter, before = self._parameter(), self._norm
        if parameter is None or not _holds(optimizer, parameter):
            return
        after = None if before is None else self._current()
        self._last, self._norm, self._backwards = None, None, 0
        if before is None or after is None or not self._recorder.active:
            return
        recorder, step = self._recorder, self._recorder.step
        with recorder.own_torch(), torch.no_grad():
            self.readback.drain(wait=False)
            self.readback.enqueue(
                after / before, lambda one: recorder.value(GRADIENT_FACTOR, float(one), step)
            )

    def _parameter(self) -> torch.Tensor | None:
        return None if self._last is None else self._last()

    def _current(self) -> torch.Tensor | None:
        parameter = self._parameter()
        with self._threads.alone() as alone, self._recorder.own_torch(), torch.no_grad():
            if parameter is None or not alone or capturing():
                return None
            gradient = parameter.grad
            if gradient is None or not has_norm(gradient) or gradient.is_sparse:
                return None
            norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float32)
            return norm


def _holds(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    return any(one is parameter for group in optimizer.param_groups for one in group["params"])


def _hook(context: HookContext) -> None:
    modules, patches = context.get(Modules), context.patches
    scaled = context.share(ScaledGradients(context.recorder, context.get(ThreadGradients)))
    modules.began.append(scaled.began)
    patches.also_undo(partial(modules.began.remove, scaled.began))
    patches.also_undo(partial(scaled.readback.finish, context.recorder))
    patches.before_steps(scaled.steps)


HOOK = Hook("factors of averaged gradients", _hook)
