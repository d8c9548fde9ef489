"""Records gradient clipping: the total norm that torch computed, and its limit.

`clip_grad_norm_` calls a function that scales the gradients; its arguments are these two numbers,
so it is hooked. torch before 2.6 has no such function: there `clip_grad_norm_` itself is hooked.
Of `clip_grad_value_` the bound is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from ...format.names import CLIP_LIMIT, CLIP_NORM, CLIP_VALUE, SHARD
from ...journal import clock
from ...journal.journal import RecordKind, float_bits
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches
from .device_readback import DeviceReadback
from .optimizer_parameters import is_whole, local_part

_SCALING, _CLIPPING = "_clip_grads_with_norm_", "clip_grad_norm_"
_BY_VALUE = "clip_grad_value_"


def install(recorder: Recorder) -> Callable[[], None]:
    """Records norm and limit, or the bound, of each clipping from here on."""
    readback = DeviceReadback()

    def note(limit: Any, total: torch.Tensor) -> None:
        # Each rank knows only its shard's norm; the whole would take a collective call.
        name = CLIP_NORM if is_whole(total) else CLIP_NORM + SHARD
        instant, step = clock.now(), recorder.step

        def write(norm: torch.Tensor) -> None:
            for text, number in ((name, float(norm)), (CLIP_LIMIT, float(limit))):
                recorder.put(
                    recorder.thread(),
                    RecordKind.VALUE,
                    name=recorder.intern(text),
                    start=instant,
                    sequence=float_bits(number),
                    step=step,
                )

        # The program may go on to use it.
        readback.enqueue(local_part(total).detach(), write)
        readback.drain(wait=False)

    def clipped(limit: Any, total: Any) -> None:
        if recorder.active and not torch.compiler.is_compiling():
            with recorder.contain_errors(), recorder.own_torch():
                note(limit, total)

    def scales(*args: Any, **keys: Any) -> None:
        given = dict(zip(("", "max_norm", "total_norm"), args, strict=False)) | keys
        clipped(given["max_norm"], given["total_norm"])

    def clips(*args: Any, **keys: Any) -> Any:
        return args[1] if len(args) > 1 else keys.get("max_norm")

    def bounds(*args: Any, **keys: Any) -> None:
        if recorder.active and not torch.compiler.is_compiling():
            with recorder.contain_errors():
                bound = args[1] if len(args) > 1 else keys["clip_value"]
                recorder.value(CLIP_VALUE, float(bound))

    patches = Patches()
    patches.ends(clip_grad, _BY_VALUE, bounds, also=(torch.nn.utils.__name__,))
    lost = "clipping by functions imported before the recording"
    if optional(clip_grad.__name__, _SCALING, lost) is not None:
        patches.ends(clip_grad, _SCALING, scales)
    else:
        patches.ends(clip_grad, _CLIPPING, clips, clipped, also=(torch.nn.utils.__name__,))

    def uninstall() -> None:
        patches.undo()
        readback.finish(recorder)

    return uninstall


HOOK = Hook("clipping", lambda context: install(context.recorder))
