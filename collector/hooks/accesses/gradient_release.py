"""Records releases of gradients, which are accesses outside operators.

`zero_grad(set_to_none=True)`, `p.grad = None`, `del p.grad` and `p.grad = another` matter only to
other threads, so recording starts with the second one. Each counts as a write to the released
gradient: a concurrent backward would add to a tensor that the optimizer never sees. Each also
counts as a read of the parameter, which a concurrent optimizer step writes.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ...format.names import RELEASED_GRADIENTS, REMOVED_GRADIENT, REPLACED_GRADIENT
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..stacks import Stacks
from ..training.optimizer_parameters import PLAIN
from ..training.thread_gradients import ThreadGradients
from .synthetic_accesses import Extent, SyntheticAccess, SyntheticAccesses, extent_of


class Releases:
    """Writes an operator for each call that releases gradients."""

    def __init__(
        self,
        recorder: Recorder,
        stacks: Stacks,
        trains: Callable[[], object],
        extents_of: Callable[[list[torch.Tensor]], Sequence[int] | None],
    ) -> None:
        """`trains`: see `ThreadGradients`; `extents_of`: see `HostReader`."""
        self._accesses = SyntheticAccesses(recorder, stacks)
        self._trains = trains
        self._extents_of = extents_of
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
        if get_ident() not in self._zeroing:
            name = REMOVED_GRADIENT if gradient is None else REPLACED_GRADIENT
            self._released((parameter,), name, gradient)

    def _released(
        self, parameters: Iterable[torch.Tensor], name: str, given: torch.Tensor | None = None
    ) -> None:
        """Writes which gradients are released; a parameter that has `given` already keeps it."""
        self._trains()
        accesses: list[SyntheticAccess] = []
        for own, gradient in self._held(list(parameters), given):
            if gradient and own:
                accesses += (
                    SyntheticAccess(gradient, write=True),
                    SyntheticAccess(own, write=False),
                )
        self._accesses.note(name, accesses)

    def _held(
        self, parameters: list[torch.Tensor], given: torch.Tensor | None
    ) -> Iterator[tuple[Extent | None, Extent | None]]:
        """Yields where parameters and their gradients are.

        Of plain ones without an object of Python for the gradient: reading `grad` while another
        thread drops it crashes the program.
        """
        plain = [one for one in parameters if type(one) in PLAIN]
        kept = given._cdata if given is not None and type(given) in PLAIN else 0
        found = self._extents_of(plain) or ()
        for at in range(0, len(found), 7):
            own, gradient = Extent(*found[at : at + 3]), Extent(*found[at + 3 : at + 6])
            if own.storage and gradient.storage and found[at + 6] != kept:
                yield own, gradient
        for one in parameters if len(plain) < len(parameters) else ():
            if type(one) not in PLAIN and one.grad is not given:
                yield extent_of(one), extent_of(one.grad)


def _hook(context: HookContext) -> None:
    """Hooks `zero_grad` of modules and optimizers, and assignments to a parameter's gradient."""
    assert context.library is not None
    threads, patches = context.get(ThreadGradients), context.patches
    extents_of = context.library.reader.extents_of
    releases = Releases(context.recorder, context.stacks, threads.trains, extents_of)

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
