"""Gradient clipping: the total norm as torch found it, and the norm that it was clipped to.

`clip_grad_norm_` ends in a function of its module that scales the gradients. That one is replaced:
programs may have imported `clip_grad_norm_` by name before the recording began. Where torch (before
2.6) has no such function, `clip_grad_norm_` itself is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.utils import clip_grad

from ...format.names import CLIP_LIMIT, CLIP_NORM, SHARD
from ...journal import clock
from ...journal.journal import Kind, float_bits
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..patches import Patches
from .device_readback import Deliveries
from .optimizer_parameters import is_whole, local_part

_SCALING, _CLIPPING = "_clip_grads_with_norm_", "clip_grad_norm_"


def install(recorder: Recorder) -> Callable[[], None]:
    """Record what gradients are clipped from and to, from here on."""
    deliveries = Deliveries()

    def note(limit: Any, total: torch.Tensor) -> None:
        # Of sharded gradients each rank knows its part; the whole would take a collective call.
        name = CLIP_NORM if is_whole(total) else CLIP_NORM + SHARD
        instant, step = clock.now(), recorder.step

        def write(norm: torch.Tensor) -> None:
            for text, number in ((name, float(norm)), (CLIP_LIMIT, float(limit))):
                recorder.put(
                    recorder.thread(), Kind.VALUE, name=recorder.intern(text), start=instant,
                    sequence=float_bits(number), step=step,
                )  # fmt: skip

        # The program may go on to use it.
        deliveries.hand_on(local_part(total).detach(), write)
        deliveries.drain(wait=False)

    def clipped(limit: Any, total: Any) -> None:
        if recorder.active and not torch.compiler.is_compiling():
            with recorder.contain_errors(), recorder.suppress_recording():
                note(limit, total)

    def around_scaling(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def scale(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **keys: Any) -> Any:
            clipped(max_norm, total_norm)
            return original(parameters, max_norm, total_norm, *args, **keys)

        return scale

    def around_clipping(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def clip(parameters: Any, max_norm: Any, *args: Any, **keys: Any) -> Any:
            total = original(parameters, max_norm, *args, **keys)
            clipped(max_norm, total)
            return total

        return clip

    patches = Patches()
    scaling = optional(
        clip_grad.__name__, _SCALING, "clipping by functions imported before the recording"
    )
    if scaling is not None:
        patches.put(clip_grad, _SCALING, around_scaling(scaling))
    else:
        for module in (torch.nn.utils, clip_grad):
            patches.put(module, _CLIPPING, around_clipping(getattr(module, _CLIPPING)))

    def uninstall() -> None:
        patches.undo()
        with recorder.contain_errors():
            if recorder.folder is not None:
                deliveries.drain(wait=True)

    return uninstall
