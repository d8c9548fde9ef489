"""Records steps on gradients that the loss of another optimizer left, as nothing zeroed them.

The loss of a generator leads through the discriminator, and leaves gradients there. They are the
discriminator's, unless they are zeroed between the generator's step and its own backward.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.optim import Optimizer

from ...format.loop_names import LEFT_GRADIENTS
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from ..training.modules import Modules
from ..training.thread_gradients import ThreadGradients
from .scaled_losses import Trained, first_trained, identity


@dataclass
class _Held:
    """What an optimizer's gradients hold since its last step."""

    first: Trained
    left: list[tuple[int, int]] = field(default_factory=list)  # their gradients after a backward
    added: bool = False  # a backward added to them
    other: weakref.ref[Optimizer] | None = None  # see `stepped_since`
    mixed: bool = False  # a backward added to them after that step, and not to the other's

    def forget(self) -> None:
        """Begins again, as they were used or zeroed."""
        self.added = self.mixed = False
        self.other = None

    def stepped_since(self) -> Optimizer | None:
        """Returns another optimizer that stepped since, if it is still there."""
        return None if self.other is None else self.other()

    def now(self) -> list[tuple[int, int]]:
        """Returns which tensors the gradients are, and how often they were changed."""
        return [identity(one) for one in self.first]


class LeftGradients:
    """Writes a value named LEFT_GRADIENTS for each such step. Looks at nothing where there is a
    single optimizer."""

    def __init__(
        self,
        recorder: Recorder,
        stacks: Stacks,
        name_of: Callable[[torch.Tensor], str | None],
        threads: ThreadGradients,
    ) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._name_of = name_of
        self._held: weakref.WeakKeyDictionary[Optimizer, _Held] = weakref.WeakKeyDictionary()
        self._threads = threads

    def backward(self) -> None:
        """Looks whether gradients were zeroed since the last backward."""
        if len(self._held) < 2:
            return
        with self._threads.alone() as alone, self._recorder.own_torch():
            for held in self._held.values() if alone else ():
                now = held.now()
                if now != held.left:
                    held.forget()
                    held.left = now

    def backward_ended(self) -> None:
        """Looks which gradients a backward has added to."""
        if len(self._held) < 2:
            return
        with self._threads.alone() as alone, self._recorder.own_torch():
            looked = self._held.items() if alone else ()
            touched = {one for one, held in looked if held.now() != held.left}
            for optimizer in touched:
                held = self._held[optimizer]
                other = held.stepped_since()
                held.mixed |= held.added and other is not None and other not in touched
                held.left, held.added = held.now(), True

    def steps(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps."""
        only = self._held.get(optimizer) if len(self._held) == 1 else None
        if only is not None:  # no other one has a loss
            only.forget()
            self._threads.trains()
            return
        with self._threads.alone() as alone:
            if alone:
                self._steps_alone(optimizer)

    def _steps_alone(self, optimizer: Optimizer) -> None:
        own = self._held.get(optimizer)
        if own is None:
            with self._recorder.own_torch():
                trained = first_trained(optimizer)
            if not trained:
                return
            own = self._held[optimizer] = _Held(trained)
        other = own.stepped_since()
        if own.mixed and other is not None:
            self._write(own, self._held[other])
        own.forget()
        for held in self._held.values():
            if held.added and not any(one is own.first[0] for one in held.first):
                held.other = weakref.ref(optimizer)

    def _write(self, own: _Held, other: _Held) -> None:
        if self._recorder.active:
            place = program_place(caller(), self._is_library)
            first = (held.first[0]() for held in (own, other))
            names = ((one is not None and self._name_of(one)) or "a parameter" for one in first)
            self._recorder.value(f"{LEFT_GRADIENTS}{place}/{'/'.join(names)}", 1.0)


def _hook(context: HookContext) -> None:
    names, threads = context.get(Modules).parameter_name, context.get(ThreadGradients)
    left = context.share(LeftGradients(context.recorder, context.stacks, names, threads))
    context.patches.before_steps(left.steps)


HOOK = Hook("gradients that other losses left", _hook)
