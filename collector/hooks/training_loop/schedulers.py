"""Records steps of learning rate schedulers whose optimizer never steps."""

from __future__ import annotations

import weakref
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...format.names import IDLE_SCHEDULER
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches, caller
from ..stacks import Stacks, program_place


class Schedulers:
    """Writes a value named IDLE_SCHEDULER for a step of a scheduler, where an optimizer stepped
    that holds the same parameters in groups of its own, and the scheduler's never did."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def stepping(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Notes that an optimizer steps; global pre-hook."""
        self._stepped.add(optimizer)

    def steps(self, scheduler: Any) -> None:
        """Looks at a scheduler's step."""
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None or optimizer in self._stepped or not self._recorder.active:
            return
        if any(_replaces(other, optimizer) for other in self._stepped):
            place = program_place(caller(), self._is_library)
            kinds = f"{type(scheduler).__name__}/{type(optimizer).__name__}"
            self._recorder.value(f"{IDLE_SCHEDULER}{place}/{kinds}", 1.0)


def _replaces(stepped: Any, idle: Any) -> bool:
    """Returns whether an optimizer holds a parameter of another, and none of its groups."""
    groups = {id(group) for group in idle.param_groups}
    held = {id(one) for group in idle.param_groups for one in group["params"]}
    own = stepped.param_groups
    return not any(id(group) in groups for group in own) and any(
        id(one) in held for group in own for one in group["params"]
    )


def _hook(context: HookContext) -> Undo:
    patches = Patches()
    schedulers = Schedulers(context.recorder, context.stacks)
    handle = register_optimizer_step_pre_hook(schedulers.stepping)
    for kind in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau):
        patches.ends(kind, "step", schedulers.steps, self_alone=True)

    def undo() -> None:
        handle.remove()
        patches.undo()

    return undo


HOOK = Hook("learning rate schedulers", _hook)
