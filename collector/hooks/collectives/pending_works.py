"""Records when the program asks for the end of collectives that it began with async_op=True, and of
sends and receives that it began with isend and irecv; also which calls gather activations with a
gradient, as the results have no gradient."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ...format.loop_names import GATHERED_ACTIVATION
from ...format.names import WORK_ASKED, WORK_BEGUN
from ..base import Hook, HookContext

_ASKS = ("wait", "is_completed", "synchronize", "get_future", "result", "exception")
"""Methods of torch's Work by which a program may learn that it is done."""

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
"""Functions of torch.distributed with an argument `async_op`."""


_GATHERS = ("all_gather", "all_gather_into_tensor")
"""Of these, functions whose second argument is gathered."""


def _hook(context: HookContext) -> None:
    """Writes WORK_BEGUN for each such call, and WORK_ASKED for the first question after it."""
    recorder, patches = context.recorder, context.patches
    if not dist.is_available():
        return
    pending = False

    def begins(name: str) -> Callable[..., bool]:
        parameters = [*inspect.signature(getattr(dist, name)).parameters]
        position, gathers = parameters.index("async_op"), name in _GATHERS

        def asynchronous(*args: Any, **kwargs: Any) -> bool:
            if gathers and torch.is_grad_enabled() and recorder.active:
                gathered = args[1] if len(args) > 1 else kwargs.get(parameters[1])
                if isinstance(gathered, torch.Tensor) and gathered.grad_fn is not None:
                    recorder.value(GATHERED_ACTIVATION, 1.0)
            return bool(args[position] if len(args) > position else kwargs.get("async_op"))

        return asynchronous

    def begun(asynchronous: bool, work: Any) -> None:
        nonlocal pending
        if asynchronous and work is not None and recorder.active:
            pending = True
            recorder.value(WORK_BEGUN, 1.0)

    def asked(_: Any) -> None:
        nonlocal pending
        if pending:
            pending = False
            recorder.value(WORK_ASKED, 1.0)

    for name in _COLLECTIVES:
        patches.ends(dist.distributed_c10d, name, begins(name), begun)
    for name in ("isend", "irecv"):
        patches.ends(dist.distributed_c10d, name, lambda *_, **__: True, begun)
    for name in _ASKS:
        patches.ends(dist.Work, name, asked, self_alone=True)


HOOK = Hook("ends of asynchronous collectives", _hook, native=True)
