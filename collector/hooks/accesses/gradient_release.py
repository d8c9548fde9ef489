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
from typing import Any

import torch

from ...format.names import RELEASED_GRADIENTS, REMOVED_GRADIENT, REPLACED_GRADIENT
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches
from ..stacks import Stacks
from .synthetic_accesses import Touch, Touches, extent_of


class Releases:
    """Writes an operator for each call that lets gradients go."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._touches = Touches(recorder, stacks)
        self._zeroing: set[int] = set()  # idents of threads in a zero_grad that is noted as one

    def begin_zeroing(self, parameters: Callable[[], Iterable[torch.Tensor]]) -> bool:
        """The gradients of `parameters` are about to be set to None, until `end_zeroing`.

        Returns whether this is the outermost of such calls.
        """
        self._released(parameters(), RELEASED_GRADIENTS)
        me = get_ident()
        outermost = me not in self._zeroing
        self._zeroing.add(me)
        return outermost

    def end_zeroing(self, outermost: bool) -> None:
        """They have been."""
        if outermost:
            self._zeroing.discard(get_ident())

    def assigned(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """The calling thread is about to give a parameter that gradient, or none."""
        held = parameter.grad
        if held is None or held is gradient or get_ident() in self._zeroing:
            return
        name = REMOVED_GRADIENT if gradient is None else REPLACED_GRADIENT
        self._released((parameter,), name)

    def _released(self, parameters: Iterable[torch.Tensor], name: str) -> None:
        touches: list[Touch] = []
        for parameter in parameters:
            gradient, own = extent_of(parameter.grad), extent_of(parameter)
            if gradient and own:
                touches += (Touch(gradient, write=True), Touch(own, write=False))
        self._touches.note(name, touches)


def install(recorder: Recorder, stacks: Stacks) -> Callable[[], None]:
    """Note what modules, optimizers and assignments to a parameter's gradient let go of."""
    releases, patches = Releases(recorder, stacks), Patches()

    def zeroes(
        parameters: Callable[[Any], Iterable[torch.Tensor]],
    ) -> tuple[Callable[..., Any], ...]:
        def begin(owner: Any, set_to_none: bool = True, *_: Any, **__: Any) -> tuple[bool] | None:
            if not set_to_none or torch.compiler.is_compiling():
                return None
            return (releases.begin_zeroing(lambda: parameters(owner)),)

        def end(began: tuple[bool], _: Any) -> None:
            releases.end_zeroing(*began)

        return begin, end, end

    def of_optimizer(optimizer: Any) -> Iterable[torch.Tensor]:
        return (p for group in optimizer.param_groups for p in group["params"])

    kind: Any
    for kind, parameters in (
        (torch.nn.Module, lambda module: module.parameters()),
        (torch.optim.Optimizer, of_optimizer),
    ):
        patches.ends(kind, "zero_grad", *zeroes(parameters), when_concurrent=True)
    lost = "gradients that are removed or replaced"
    base = optional("torch._C", "TensorBase", lost)
    if base is not None:
        # Of parameters only: others have no optimizer.
        patches.setter(base, "grad", torch.nn.Parameter, releases.assigned, lost)
    return patches.undo


HOOK = Hook(
    "accesses (gradient_release)",
    lambda context: install(context.recorder, context.stacks),
    levels=("access", "numerics"),
    native=True,
)
