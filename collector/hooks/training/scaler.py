"""Records mixed precision: the loss scale over time, and skipped optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from ...format.names import LOSS_SCALE, SKIPPED_STEPS
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from .device_readback import DeviceReadback
from .gradients import Gradients
from .optimizers import Optimizers

SKIP_MARK = "optimizer step skipped"


class Scalers:
    """Observes every GradScaler; calls `skipped` with the optimizer of each skipped step."""

    def __init__(self, recorder: Recorder, skipped: Callable[[Any], None]) -> None:
        self._recorder = recorder
        self._on_skipped = skipped
        self._skipped = 0
        self._steps = 0
        self.readback = DeviceReadback()

    def stepped(self, optimizer: Any) -> None:
        """Counts steps."""
        self._steps += 1
        # A fused optimizer gets a flag for NaN or Inf gradients, and skips the step itself.
        found = getattr(optimizer, "found_inf", None)
        if isinstance(found, torch.Tensor) and self._recorder.active:
            with self._recorder.own_torch():
                self.readback.enqueue(found, lambda sum_: self._skip() if sum_.item() else None)

    def begins(self, scaler: Any, optimizer: Any, *_: Any, **__: Any) -> tuple[int, Any]:
        """Begins a scaler's step, which it skips if a gradient is NaN or Inf."""
        return self._steps, optimizer

    def ended(self, began: tuple[int, Any], _: Any) -> None:
        """Ends a scaler's step."""
        before, optimizer = began
        if self._steps == before and self._recorder.active:
            self._skip()
            self._on_skipped(optimizer)

    def updated(self, scaler: Any, _: Any) -> None:
        """Records the loss scale at the end of a scaler's iteration."""
        scale = vars(scaler).get("_scale")  # None: the scaler is not in use
        if self._recorder.active and scale is not None:
            with self._recorder.own_torch():
                self.readback.enqueue(scale, self._note)
                self.readback.drain(wait=False)

    def _skip(self) -> None:
        self._skipped += 1
        self._recorder.value(SKIPPED_STEPS, float(self._skipped))
        self._recorder.mark(SKIP_MARK)

    def _note(self, scale: torch.Tensor) -> None:
        self._recorder.value(LOSS_SCALE, float(scale))


_STEP, _UPDATE = "_maybe_opt_step", "update"


def _hook(context: HookContext) -> None:
    def skipped(optimizer: Any) -> None:
        context.get(Gradients).skipped(optimizer, context.get(Optimizers).ordinal(optimizer))

    scalers, patches = Scalers(context.recorder, skipped), context.patches
    patches.also_undo(partial(scalers.readback.finish, context.recorder))
    lost = "optimizer steps that a gradient scaler skips"
    patches.ends(GradScaler, _STEP, scalers.begins, scalers.ended, lost=lost)
    patches.ends(GradScaler, _UPDATE, lambda scaler: scaler, scalers.updated, self_alone=True)
    patches.before_steps(scalers.stepped)


HOOK = Hook("gradient scalers", _hook)
