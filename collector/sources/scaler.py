"""Mixed precision: the loss scale over time, and optimizer steps that were skipped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..recorder import Recorder

LOSS_SCALE = "loss_scale"
SKIPPED = "skipped_steps"
"""Names in the value table: the scale after each update; steps skipped so far, at each one."""

SKIP_MARK = "optimizer step skipped"


class Scalers:
    """Follows every GradScaler. A scale on a device is written when the device has delivered it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._skipped = 0
        self._steps = 0
        self._pending: deque[tuple[Any, torch.Tensor]] = deque()

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Global step pre-hook."""
        self._steps += 1

    def around_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of the method that steps unless a gradient is NaN or Inf."""

        @wraps(original)
        def maybe_step(*args: Any, **kwargs: Any) -> Any:
            before = self._steps
            result = original(*args, **kwargs)
            with self._recorder.guarded():
                if self._steps == before and self._recorder.active:
                    self._skipped += 1
                    self._recorder.value(SKIPPED, float(self._skipped))
                    self._recorder.mark(SKIP_MARK)
            return result

        return maybe_step

    def around_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of the method that ends a scaler's iteration."""

        @wraps(original)
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            with self._recorder.guarded():
                if self._recorder.active:
                    self._note(vars(scaler).get("_scale"))
            return result

        return update

    def drain(self, *, wait: bool) -> None:
        """Write what devices have delivered by now; with `wait`, all of it."""
        while self._pending:
            event, host = self._pending[0]
            if wait:
                event.synchronize()
            elif not event.query():
                return
            self._pending.popleft()
            self._recorder.value(LOSS_SCALE, float(host))

    def _note(self, scale: torch.Tensor | None) -> None:
        if scale is None:  # the scaler is not in use
            return
        state = self._recorder.thread()
        state.busy = True
        try:
            if scale.device.type == "cpu":
                self._pending.append((_Done(), scale.detach().clone()))
            else:
                host = torch.empty_like(scale, device="cpu", pin_memory=True)
                host.copy_(scale.detach(), non_blocking=True)
                event: Any = torch.get_device_module(scale.device).Event()
                event.record()
                self._pending.append((event, host))
            self.drain(wait=False)
        finally:
            state.busy = False


class _Done:
    """Stands for the event of what is in host memory already."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """There is nothing to wait for."""


_STEP, _UPDATE = "_maybe_opt_step", "update"


def install(recorder: Recorder) -> Callable[[], None]:
    """Follow all scalers from here on."""
    scalers = Scalers(recorder)
    originals = {name: getattr(GradScaler, name) for name in (_STEP, _UPDATE)}
    handle = register_optimizer_step_pre_hook(scalers.stepped)
    setattr(GradScaler, _STEP, scalers.around_step(originals[_STEP]))
    setattr(GradScaler, _UPDATE, scalers.around_update(originals[_UPDATE]))

    def uninstall() -> None:
        handle.remove()
        for name, original in originals.items():
            setattr(GradScaler, name, original)
        with recorder.guarded():
            if recorder.folder is not None:
                scalers.drain(wait=True)

    return uninstall
