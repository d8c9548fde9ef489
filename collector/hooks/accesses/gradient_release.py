"""Gradients that a program lets go of: no operator does it, yet it is an access.

`zero_grad(set_to_none=True)`, `p.grad = None`, `del p.grad` and `p.grad = another` are noted where
there is a second thread, for whom alone they matter. Each counts as a write to the gradient that is
let go: who still holds that tensor may read it in peace, but a backward that adds to it adds to
what nobody will find. It counts as a read of the parameter as well, which an optimizer's step that
takes place before or after, as chance will have it, writes.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from ...format.names import RELEASED_GRADIENTS, REMOVED_GRADIENT, REPLACED_GRADIENT
from ...recorder.recorder import Recorder
from ..stacks import Stacks
from ..threads.sync_events import Handovers
from .synthetic_accesses import Touch, Touches, extent_of


class Releases:
    """Writes an operator for each call that lets gradients go."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._touches = Touches(recorder, stacks)
        self._zeroing: set[int] = set()  # idents of threads in a zero_grad that is noted as one

    def zeroing(
        self, zero: Callable[[], None], parameters: Callable[[], Iterable[torch.Tensor]]
    ) -> None:
        """Call `zero`, which sets the gradients of `parameters` to None."""
        with self._recorder.contain_errors():
            self._released(parameters(), RELEASED_GRADIENTS)
        me = get_ident()
        outer = me in self._zeroing
        self._zeroing.add(me)
        try:
            zero()
        finally:
            if not outer:
                self._zeroing.discard(me)

    def assigned(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """The calling thread is about to give a parameter that gradient, or none."""
        held = parameter.grad
        if held is None or held is gradient or get_ident() in self._zeroing:
            return
        try:
            name = REMOVED_GRADIENT if gradient is None else REPLACED_GRADIENT
            self._released((parameter,), name)
        except Exception as error:
            self._recorder.failed(error)

    def _released(self, parameters: Iterable[torch.Tensor], name: str) -> None:
        touches: list[Touch] = []
        for parameter in parameters:
            gradient, own = extent_of(parameter.grad), extent_of(parameter)
            if gradient and own:
                touches += (Touch(gradient, write=True), Touch(own, write=False))
        self._touches.note(name, touches)


def install(recorder: Recorder, handovers: Handovers, stacks: Stacks) -> Callable[[], None]:
    """Note what modules, optimizers and assignments to a parameter's gradient let go of."""
    releases = Releases(recorder, stacks)
    module: Any = torch.nn.Module
    optimizer: Any = torch.optim.Optimizer
    parameter: Any = torch.nn.Parameter
    own_module, own_optimizer = module.zero_grad, optimizer.zero_grad
    # A function that is compiled has zero_grad traced into it, which the recorder cannot follow.
    is_compiling = torch.compiler.is_compiling

    @wraps(own_module)
    def of_module(self: Any, set_to_none: bool = True) -> None:
        if is_compiling() or not (set_to_none and handovers.concurrent):
            own_module(self, set_to_none)
        else:
            releases.zeroing(lambda: own_module(self, True), self.parameters)

    @wraps(own_optimizer)
    def of_optimizer(self: Any, set_to_none: bool = True) -> None:
        if is_compiling() or not (set_to_none and handovers.concurrent):
            own_optimizer(self, set_to_none)
        else:
            releases.zeroing(
                lambda: own_optimizer(self, True),
                lambda: (p for group in self.param_groups for p in group["params"]),
            )

    plain: Any = torch.Tensor.grad

    def assign(self: torch.Tensor, gradient: torch.Tensor | None) -> None:
        releases.assigned(self, gradient)
        plain.__set__(self, gradient)

    def remove(self: torch.Tensor) -> None:
        releases.assigned(self, None)
        plain.__delete__(self)

    def watch() -> None:
        # Of parameters only: whatever asks torch.Tensor itself for `grad` finds what it knows.
        parameter.grad = property(plain.__get__, assign, remove, plain.__doc__)

    module.zero_grad, optimizer.zero_grad = of_module, of_optimizer
    handovers.when_concurrent(watch)

    def uninstall() -> None:
        module.zero_grad, optimizer.zero_grad = own_module, own_optimizer
        if "grad" in vars(parameter):
            del parameter.grad

    return uninstall
