"""Gradient clipping: the total norm as torch found it, and the norm that it was clipped to.

`clip_grad_norm_` ends in a function of its module that scales the gradients. That one is replaced:
programs may have imported `clip_grad_norm_` by name before the recording began.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.utils import clip_grad

from .. import clock
from ..journal import Kind, float_bits
from ..kinds import CLIP_LIMIT, CLIP_NORM, SHARD
from ..recorder import Recorder
from .deliveries import Deliveries
from .held import is_whole, local_part

_NAME = "_clip_grads_with_norm_"


def install(recorder: Recorder) -> Callable[[], None]:
    """Record what gradients are clipped from and to, from here on."""
    original: Callable[..., Any] = getattr(clip_grad, _NAME)
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

    @wraps(original)
    def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.active and not torch.compiler.is_compiling():
            with recorder.guarded(), recorder.unseen():
                note(max_norm, total_norm)
        return original(parameters, max_norm, total_norm, *args, **kwargs)

    setattr(clip_grad, _NAME, clip)

    def uninstall() -> None:
        setattr(clip_grad, _NAME, original)
        with recorder.guarded():
            if recorder.folder is not None:
                deliveries.drain(wait=True)

    return uninstall
