"""Records optimizer phases and training steps, from torch's global optimizer hooks."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ...format.record_kinds import PhaseKind
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from .gradients import Gradients
from .settings import record_settings

_TAKES_OVER = 30
"""Steps of one optimizer without any of the one whose steps count. A GAN has fewer in a round."""

_MAKES_STATE = "_init_optim_state"
_MAX_FRAMES = 6  # from the hook to it: what torch wraps a step in


def _only_makes_state() -> bool:
    """True in the step by which torch.distributed.checkpoint has an optimizer make its state.

    Its learning rates and gradients are 0, so it trains nothing.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAX_FRAMES):
        if frame is None or frame.f_code.co_name == _MAKES_STATE:
            return frame is not None
        frame = frame.f_back
    return False


class Optimizers:
    """Separates steps: a step ends after each step of the first optimizer that stepped.

    So each round of a program with several optimizers (a GAN) counts once. Once that optimizer is
    gone, as where a program trains one model after the other, the next one takes its place: one
    that is new, rather than one that stepped beside it. So does one that steps _TAKES_OVER times
    while that optimizer does not. Where optimizers step during backward, the step ends with that
    backward. After `mark_step` only the program's own boundaries count. `before(optimizer, number)`
    and `after(optimizer)` enclose a step.
    """

    def __init__(
        self,
        recorder: Recorder,
        before: Callable[[Optimizer, int], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        self._recorder = recorder
        self._before = before
        self._after = after
        self._ordinals: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._first: Callable[[], Optimizer | None] = lambda: None
        self._chosen = False  # the first one is not one that only stepped beside its predecessor
        self._beside: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._open: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._explicit = False
        self._ends_with_backward = False
        # Number of the backward on the calling thread; -1: none.
        self._backward: Callable[[], int] = optional(
            "torch._C", "_current_graph_task_id", "ends of steps whose optimizers run in backward"
        ) or (lambda: -1)

    def mark_step(self) -> None:
        """Ends a step where the program says so."""
        self._explicit = True
        self._recorder.next_step()

    def ordinal(self, optimizer: Optimizer) -> int:
        """Returns the optimizer's number in this process, in the order of first steps."""
        number = self._ordinals.get(optimizer)
        if number is None:
            number = self._ordinals[optimizer] = next(self._numbers)
        return number

    def begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Begins a step; global step pre-hook.

        A closure computes gradients within the step. They are recorded when it returns for the
        first time: the hook returns arguments in which another closure replaces it.
        """
        recorder = self._recorder
        changed = None
        try:
            first = optimizer not in self._ordinals
            if first and _only_makes_state():
                return None
            ordinal = self.ordinal(optimizer)
            if first and recorder.active:
                record_settings(recorder, optimizer, ordinal)
            left_open = self._open.pop(optimizer, None)
            if left_open is not None:  # its last step raised, so the post-hook did not run
                recorder.end_phase(left_open)
            if recorder.active:
                changed = self._with_closure(optimizer, args, kwargs)
                if changed is None:
                    self._before(optimizer, ordinal)
            name = f"{type(optimizer).__name__}.step"
            self._open[optimizer] = recorder.begin_phase(name, PhaseKind.optimizer)
        except Exception as error:
            recorder.failed(error)
        return changed

    def end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Ends a step; global step post-hook."""
        recorder = self._recorder
        try:
            depth = self._open.pop(optimizer, None)
            if depth is None:
                return
            recorder.end_phase(depth)
            if recorder.active:
                self._after(optimizer)
            if not self._explicit and self._ends_steps(optimizer):
                if self._backward() != -1:
                    self._ends_with_backward = True
                else:
                    recorder.next_step()
        except Exception as error:
            recorder.failed(error)

    def backward_ended(self) -> None:
        """Ends a step whose optimizers ran in the backward that has just ended."""
        if self._ends_with_backward and self._backward() == -1:
            self._ends_with_backward = False
            self._recorder.next_step()

    def _ends_steps(self, optimizer: Optimizer) -> bool:
        first, beside = self._first(), self._beside
        if first is optimizer:
            self._chosen = True
            for other in beside:
                beside[other] = 0
            return True
        new = optimizer not in beside
        beside[optimizer] = since = beside.get(optimizer, 0) + 1
        if first is None:
            self._chosen = new
        elif not (new and not self._chosen) and since < _TAKES_OVER:
            return False
        else:
            self._chosen = True
        self._first = weakref.ref(optimizer)
        return True

    def _with_closure(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Returns a step's arguments with a closure that records; None: it has no closure."""
        place: Any = "closure" if "closure" in kwargs else 1
        original = kwargs.get("closure") if place == "closure" else args[1:2] and args[1]
        if not callable(original):
            return None
        waiting = True

        @wraps(original)
        def closure(*own_args: Any, **own_kwargs: Any) -> Any:
            nonlocal waiting
            result = original(*own_args, **own_kwargs)
            if waiting:
                waiting = False
                with self._recorder.contain_errors():
                    self._before(optimizer, self.ordinal(optimizer))
            return result

        if place == "closure":
            return args, {**kwargs, "closure": closure}
        return (*args[:1], closure, *args[2:]), kwargs


def _hook(context: HookContext) -> None:
    gradients, patches = context.get(Gradients), context.patches
    optimizers = Optimizers(context.recorder, gradients.record, gradients.after)
    context.share(optimizers)
    patches.also_undo(register_optimizer_step_pre_hook(optimizers.begin).remove)
    patches.also_undo(register_optimizer_step_post_hook(optimizers.end).remove)


HOOK = Hook("optimizers", _hook, required=True)
