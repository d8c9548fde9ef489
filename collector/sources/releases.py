"""Gradients that zero_grad(set_to_none=True) lets go of: no operator does it, yet it is an access.

Noted only where there is a second thread, for whom alone it matters. It counts as a write to the
gradient that is let go, under an operator name of its own: who still holds that tensor may read it
in peace, but a backward that adds to it adds to what nobody will find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from .. import clock
from ..journal import ACCESS, NO_SEQUENCE, RECORD, AccessFlag, Kind
from ..kinds import RELEASED_GRADIENTS, OpScope
from ..recorder import Recorder
from .handovers import Handovers
from .held import local_part
from .stacks import Stacks

_NO_VERSION = 2**32 - 1
"""It changes no bytes, and so none is the version that it found."""


class Releases:
    """Writes an operator for each call that lets gradients go."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._stacks = stacks

    def released(self, tensors: Iterable[torch.Tensor]) -> None:
        """The calling thread is about to set the gradients of these to None."""
        recorder = self._recorder
        state = recorder.thread()
        if not recorder.active or state.busy:
            return
        found = [part for tensor in tensors if (part := _storage(tensor.grad)) is not None]
        if not found:
            return
        # Accesses belong to the operator that is stored next.
        for address, size in found:
            fields = ACCESS.pack(
                Kind.ACCESS, 1, AccessFlag.WRITE, _NO_VERSION, address, 0, size, 0, 0, 0, 0, 0
            )
            state.journal.append(*RECORD.unpack(fields))
        instant = clock.now()
        recorder.put(
            state, Kind.OP, scope=OpScope.function, name=recorder.intern(RELEASED_GRADIENTS),
            start=instant, end=instant, sequence=NO_SEQUENCE, stack=self._stacks.capture(),
        )  # fmt: skip


def install(recorder: Recorder, handovers: Handovers, stacks: Stacks) -> Callable[[], None]:
    """Note what modules and optimizers let go of."""
    releases = Releases(recorder, stacks)
    module: Any = torch.nn.Module
    optimizer: Any = torch.optim.Optimizer
    own_module, own_optimizer = module.zero_grad, optimizer.zero_grad

    @wraps(own_module)
    def of_module(self: Any, set_to_none: bool = True) -> None:
        if set_to_none and handovers.concurrent:
            with recorder.guarded():
                releases.released(self.parameters())
        own_module(self, set_to_none)

    @wraps(own_optimizer)
    def of_optimizer(self: Any, set_to_none: bool = True) -> None:
        if set_to_none and handovers.concurrent:
            with recorder.guarded():
                releases.released(p for group in self.param_groups for p in group["params"])
        own_optimizer(self, set_to_none)

    module.zero_grad, optimizer.zero_grad = of_module, of_optimizer

    def uninstall() -> None:
        module.zero_grad, optimizer.zero_grad = own_module, own_optimizer

    return uninstall


def _storage(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Address and bytes of what a gradient lies in; None: it has no such thing."""
    part = local_part(gradient)
    if type(part) not in (torch.Tensor, torch.nn.Parameter) or part.layout is not torch.strided:
        return None
    storage = part.untyped_storage()
    return (storage.data_ptr(), storage.nbytes()) if storage.data_ptr() else None
