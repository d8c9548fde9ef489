"""Records releases of gradients, which are accesses outside operators.

`zero_grad(set_to_none=True)`, `p.grad = None`, `del p.grad` and `p.grad = another` matter only to
other threads, so recording starts with the second one. Each counts as a write to the released
gradient: a concurrent backward would add to a tensor that the optimizer never sees. Each also
counts as a read of the parameter, which a concurrent optimizer step writes.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...format.names import RELEASED_GRADIENTS, REMOVED_GRADIENT, REPLACED_GRADIENT
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..stacks import Stacks
from ..training.thread_gradients import ThreadGradients
from .synthetic_accesses import SyntheticAccess, SyntheticAccesses, extent_of


class Releases:
    """Writes an operator for each call that releases gradients."""

    def __init__(self, recorder: Recorder, stacks: Stacks, trains: Callable[[], object]) -> None:
        """`trains`: see `ThreadGradients`."""
        self._accesses = SyntheticAccesses(recorder, stacks)
        self._trains = trains
        self._zeroing: set[int] = set()  # idents of threads in `zero_grad`

    def begin_zeroing(self, parameters: Callable[[], Iterable[torch.Tensor]]) -> bool:
        """Records that a call is about to set gradients to None; `end_zeroing` ends it.

        Returns whether it is the outermost of nested calls.
        """
        self._released(parameters(), RELEASED_GRADIENTS)
        me = get_ident()
        outermost = me not in self._zeroing
        self._zeroing.add(me)
        return outermost

    def end_zeroing(self, outermost: bool) -> None:
        """Ends a call; `outermost`: result of `begin_zeroing`."""
        if outermost:
            self._zeroing.discard(get_ident())

    def assigned(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """Records that the calling thread is about to assign a parameter's gradient."""
        held = parameter.grad
        if held is None or held is gradient or get_ident() in self._zeroing:
            return
        name = REMOVED_GRADIENT if gradient is None else REPLACED_GRADIENT
        self._released((parameter,), name)

    def _released(self, parameters: Iterable[torch.Tensor], name: str) -> None:
        self._trains()
        accesses: list[SyntheticAccess] = []
        for parameter in parameters:
            gradient, own = extent_of(parameter.grad), extent_of(parameter)
            if gradient and own:
                accesses += (
                    SyntheticAccess(gradient, write=True),
                    SyntheticAccess(own, write=False),
                )
        self._accesses.note(name, accesses)


def _hook(context: HookContext) -> None:
    """Hooks `zero_grad` of modules and optimizers, and assignments to a parameter's gradient."""
    threads, patches = context.get(ThreadGradients), context.patches
    releases = Releases(context.recorder, context.stacks, threads.trains)

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
        # Only of parameters: other tensors have no optimizer.
        patches.setter(base, "grad", torch.nn.Parameter, releases.assigned, lost)


HOOK = Hook("accesses (gradient_release)", _hook, levels=("access", "numerics"), native=True)
