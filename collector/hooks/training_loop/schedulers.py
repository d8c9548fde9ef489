"""Records steps of learning rate schedulers that do not do what they are for: their optimizer never
steps, or a cosine annealing whose length is given in epochs steps with each batch. Of LambdaLR it
records the factors, of ReduceLROnPlateau what it compares, of OneCycleLR the steps of its optimizer
between its own, of all where the rates come next to zero; and of optimizers the larger rates that
their state brings."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from torch.optim import Optimizer, lr_scheduler

from ...format.loop_names import (
    FADED_RATE,
    IDLE_SCHEDULER,
    LOADED_RATE,
    MAXIMIZES,
    PLATEAU,
    RATE_FACTOR,
    SHORT_ANNEALING,
    SLOW_CYCLE,
)
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place

_HALVES = 4
"""Times that a rate goes down or up again before it is recorded."""

_LONGEST = 100
"""Steps of the optimizer that a rate goes down for at most, which is too short to be meant."""

_FADED = 1e-6
"""Of the first learning rate what trains nothing."""

_SMALL = 1.001e-3  # with rounding
"""Of the first learning rate what trains hardly anything: no schedule of epochs spends long there,
but one of them that steps with each batch."""

_OF_EPOCHS = (lr_scheduler.ExponentialLR, lr_scheduler.MultiStepLR, lr_scheduler.StepLR)

_LARGER, _KEPT = 2.0, 8
"""Times its own rate that an optimizer gets with a state, and steps that it keeps it for."""

_TOGETHER = 0.9
"""Of the steps of a scheduler those of its optimizer, where both are taken in each batch."""


class _Loaded(NamedTuple):
    name: str  # of the series
    rates: list[float]


class Schedulers:
    """Writes a value named IDLE_SCHEDULER for a step of a scheduler, where an optimizer stepped
    that holds the same parameters in groups of its own, and the scheduler's never did; and
    SHORT_ANNEALING once for a scheduler."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._stepped: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._faded: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._cycles: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._factors: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._loaded: weakref.WeakKeyDictionary[Optimizer, _Loaded] = weakref.WeakKeyDictionary()

    def stepping(self, optimizer: Optimizer) -> None:
        """Notes that an optimizer steps, and whether uphill."""
        first = optimizer not in self._stepped
        if first and any(group.get("maximize") for group in optimizer.param_groups):
            self._recorder.value(MAXIMIZES, 1.0)
        self._stepped[optimizer] = self._stepped.get(optimizer, 0) + 1
        if optimizer in self._loaded:
            self._keeps(optimizer, self._loaded[optimizer])

    def loads(self, optimizer: Optimizer, *_: Any, **__: Any) -> Any:
        """Begins to load a state into an optimizer that never stepped."""
        own = _rates(optimizer)
        return (optimizer, own, caller()) if own and optimizer not in self._stepped else None

    def loaded(self, began: tuple[Optimizer, list[float], Any], _: Any) -> None:
        """Notes the rates that a state brings, if they are larger and no scheduler has set any."""
        optimizer, own, frame = began
        rates = _rates(optimizer)
        larger = len(rates) == len(own) and all(
            0 < _LARGER * before <= after for before, after in zip(own, rates, strict=True)
        )
        if larger and not any("initial_lr" in group for group in optimizer.param_groups):
            place = program_place(frame, self._is_library)
            name = f"{LOADED_RATE}{place}/{type(optimizer).__name__}/{own[0]:g}"
            self._loaded[optimizer] = _Loaded(name, rates)

    def _keeps(self, optimizer: Optimizer, found: _Loaded) -> None:
        kept = _rates(optimizer) == found.rates
        if kept and self._stepped[optimizer] == _KEPT and self._recorder.active:
            self._recorder.value(found.name, found.rates[0])
        if not kept or self._stepped[optimizer] >= _KEPT:
            del self._loaded[optimizer]

    def cycles(
        self,
        scheduler: Any,
        optimizer: Any = None,
        max_lr: Any = None,
        total_steps: Any = None,
        epochs: Any = None,
        steps_per_epoch: Any = None,
        *_: Any,
        **__: Any,
    ) -> None:
        """Notes how many steps an epoch of a new OneCycleLR has."""
        if isinstance(steps_per_epoch, int):
            self._cycles[scheduler] = steps_per_epoch

    def steps(self, scheduler: Any) -> None:
        """Looks at a scheduler's step."""
        optimizer = getattr(scheduler, "optimizer", None)
        if optimizer is None or not self._recorder.active:
            return
        self._fades(scheduler, optimizer)
        if type(scheduler) is lr_scheduler.OneCycleLR:
            self._cycle(scheduler, self._stepped.get(optimizer, 0))
        if type(scheduler) is lr_scheduler.LambdaLR:
            self._factor(scheduler, optimizer)
        if optimizer in self._stepped:
            self._annealed(scheduler, self._stepped[optimizer])
        elif any(_replaces(other, optimizer) for other in self._stepped):
            place = program_place(caller(), self._is_library)
            kinds = f"{type(scheduler).__name__}/{type(optimizer).__name__}"
            self._recorder.value(f"{IDLE_SCHEDULER}{place}/{kinds}", 1.0)

    def compares(self, scheduler: Any, metrics: Any = None, *_: Any, **__: Any) -> None:
        """Looks at the step of a scheduler that waits for a plateau of `metrics`."""
        self.steps(scheduler)
        # To read a tensor could wait for a device.
        if self._recorder.active and isinstance(metrics, (int, float)):
            place = program_place(caller(), self._is_library)
            self._recorder.value(f"{PLATEAU}{place}/{scheduler.mode}", float(metrics))

    def _annealed(self, scheduler: Any, steps: int) -> None:
        """Looks at a cosine annealing that has just come to the end of its second period."""
        if type(scheduler) is not lr_scheduler.CosineAnnealingLR:
            return
        length, taken = scheduler.T_max, scheduler.last_epoch + 1
        fewer, more = sorted((taken, steps))
        if taken == _HALVES * length <= _HALVES * _LONGEST and fewer >= _TOGETHER * more:
            place = program_place(caller(), self._is_library)
            self._recorder.value(f"{SHORT_ANNEALING}{place}", float(length))

    def _fades(self, scheduler: Any, optimizer: Any) -> None:
        """Records where the rates of all groups come next to zero, and where they leave it."""
        rates = [group["lr"] for group in optimizer.param_groups]
        first = getattr(scheduler, "base_lrs", rates)
        if not all(isinstance(one, (int, float)) for one in (*rates, *first)):
            return  # to read a tensor could wait for a device
        most = max((abs(one) for one in first), default=0.0)
        left = max(map(abs, rates), default=0.0) / most if most else 1.0
        faded = left <= (_SMALL if self._too_often(scheduler, optimizer) else _FADED)
        if faded != self._faded.get(scheduler, False):
            self._faded[scheduler] = faded
            place = program_place(caller(2), self._is_library)
            kind = f"{type(scheduler).__name__}/{most:g}"
            self._recorder.value(f"{FADED_RATE}{place}/{kind}", left)

    def _too_often(self, scheduler: Any, optimizer: Any) -> bool:
        """Returns whether a schedule that epochs are counted in steps as often as its optimizer."""
        steps = self._stepped.get(optimizer, 0)
        return type(scheduler) in _OF_EPOCHS and scheduler.last_epoch >= _TOGETHER * steps > 0

    def _cycle(self, scheduler: lr_scheduler.OneCycleLR, taken: int) -> None:
        before, self._since[scheduler] = self._since.get(scheduler, 0), taken
        if taken - before > 1:
            place = program_place(caller(2), self._is_library)
            sizes = f"{scheduler.total_steps}/{self._cycles.get(scheduler, 0)}"
            self._recorder.value(f"{SLOW_CYCLE}{place}/{sizes}", float(taken))

    def _factor(self, scheduler: lr_scheduler.LambdaLR, optimizer: Any) -> None:
        first, now = scheduler.base_lrs[0], optimizer.param_groups[0]["lr"]
        if not isinstance(first, (int, float)) or not isinstance(now, (int, float)):
            return  # to read a tensor could wait for a device
        factor = now / first if first else 0.0
        if factor != self._factors.get(scheduler):
            self._factors[scheduler] = factor
            place = program_place(caller(2), self._is_library)
            self._recorder.value(f"{RATE_FACTOR}{place}/{first:g}", factor)


def _rates(optimizer: Any) -> list[float]:
    """Returns the rates of the groups of an optimizer; empty: some are tensors."""
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    return rates if all(isinstance(one, (int, float)) for one in rates) else []


def _replaces(stepped: Any, idle: Any) -> bool:
    """Returns whether an optimizer holds a parameter of another, and none of its groups."""
    groups = {id(group) for group in idle.param_groups}
    held = {id(one) for group in idle.param_groups for one in group["params"]}
    own = stepped.param_groups
    return not any(id(group) in groups for group in own) and any(
        id(one) in held for group in own for one in group["params"]
    )


def _hook(context: HookContext) -> None:
    patches = context.patches
    schedulers = Schedulers(context.recorder, context.stacks)
    patches.before_steps(schedulers.stepping)
    patches.ends(Optimizer, "load_state_dict", schedulers.loads, schedulers.loaded)
    patches.ends(lr_scheduler.OneCycleLR, "__init__", schedulers.cycles)
    patches.ends(lr_scheduler.LRScheduler, "step", schedulers.steps, self_alone=True)
    patches.ends(lr_scheduler.ReduceLROnPlateau, "step", schedulers.compares)


HOOK = Hook("learning rate schedulers", _hook)
