"""Mixed precision: the loss scale over time, and optimizer steps that were skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...format.names import LOSS_SCALE, SKIPPED_STEPS
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches
from .device_readback import Deliveries

SKIP_MARK = "optimizer step skipped"


class Scalers:
    """Follows every GradScaler. `skipped` is called with an optimizer whose step was left out."""

    def __init__(self, recorder: Recorder, skipped: Callable[[Any], None]) -> None:
        self._recorder = recorder
        self._tell = skipped
        self._skipped = 0
        self._steps = 0
        self.deliveries = Deliveries()

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Global step pre-hook."""
        self._steps += 1
        # A fused optimizer is told whether a gradient is NaN or Inf, and skips the step itself.
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, torch.Tensor) and self._recorder.active:
            with self._recorder.contain_errors(), self._recorder.suppress_recording():
                self.deliveries.hand_on(found, lambda sum_: self._skip() if sum_.item() else None)

    def begins(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> tuple[int, Any]:
        """The method is called that steps unless a gradient is NaN or Inf."""
        return self._steps, optimizer

    def ended(self, began: tuple[int, Any], _: Any) -> None:
        """It has returned."""
        before, optimizer = began
        if self._steps == before and self._recorder.active:
            self._skip()
            self._tell(optimizer)

    def updated(self, scaler: Any, _: Any) -> None:
        """A scaler's iteration has ended."""
        scale = vars(scaler).get("_scale")  # None: the scaler is not in use
        if self._recorder.active and scale is not None:
            with self._recorder.suppress_recording():
                self.deliveries.hand_on(scale, self._note)
                self.deliveries.drain(wait=False)

    def _skip(self) -> None:
        self._skipped += 1
        self._recorder.value(SKIPPED_STEPS, float(self._skipped))
        self._recorder.mark(SKIP_MARK)

    def _note(self, scale: torch.Tensor) -> None:
        self._recorder.value(LOSS_SCALE, float(scale))


_STEP, _UPDATE = "_maybe_opt_step", "update"


def install(recorder: Recorder, skipped: Callable[[Any], None]) -> Callable[[], None]:
    """Follow all scalers from here on; `skipped(optimizer)` is called when one left a step out."""
    scalers = Scalers(recorder, skipped)
    patches = Patches()
    handle = register_optimizer_step_pre_hook(scalers.stepped)
    lost = "optimizer steps that a gradient scaler skips"
    patches.ends(GradScaler, _STEP, scalers.begins, scalers.ended, lost=lost)
    patches.ends(GradScaler, _UPDATE, lambda scaler: scaler, scalers.updated, self_alone=True)

    def uninstall() -> None:
        handle.remove()
        patches.undo()
        with recorder.contain_errors():
            if recorder.folder is not None:
                scalers.deliveries.drain(wait=True)

    return uninstall


def _hook(context: HookContext) -> Undo:
    def skipped(optimizer: Any) -> None:
        context.gradients.skipped(optimizer, context.optimizers.ordinal(optimizer))

    return install(context.recorder, skipped)


HOOK = Hook("gradient scalers", _hook)
