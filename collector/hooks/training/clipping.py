"""Records gradient clipping: the total norm that torch computed, and its limit.

`clip_grad_norm_` calls a function that scales the gradients; its arguments are these two numbers,
so it is hooked. torch before 2.6 has no such function: there `clip_grad_norm_` itself is hooked.
Of `clip_grad_value_` the bound is recorded. Calls that get no gradient are recorded by their line.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.utils import clip_grad

from ...format.loop_names import CLIPPED_NOTHING
from ...format.names import CLIP_LIMIT, CLIP_NORM, CLIP_VALUE, SHARD
from ...journal import clock
from ...journal.journal import RecordKind, float_bits
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from ..training_loop.scaled_losses import ScaledLosses
from .device_readback import DeviceReadback
from .optimizer_parameters import is_whole, local_part

_SCALING, _CLIPPING = "_clip_grads_with_norm_", "clip_grad_norm_"
_BY_VALUE = "clip_grad_value_"


class _Lines:
    """Writes a value named CLIPPED_NOTHING for calls in lines that never got a gradient."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._with_gradient: dict[str, bool] = {}

    def gets(self, parameters: Any) -> None:
        """Looks at what a call gets."""
        count = _without_gradient(parameters)
        name = f"{CLIPPED_NOTHING}{program_place(caller(), self._is_library)}"
        known = self._with_gradient.get(name)
        self._with_gradient[name] = count is None or bool(known)
        if known is False or (known is None and count is not None):
            self._recorder.value(name, -1.0 if count is None else float(count))


def _hook(context: HookContext) -> None:
    """Records norm and limit, or the bound, of each clipping from here on."""
    recorder, patches = context.recorder, context.patches
    readback, lines = DeviceReadback(), _Lines(recorder, context.stacks)
    losses = context.find(ScaledLosses)

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

    def scales(*args: Any, **keys: Any) -> bool | None:
        given = dict(zip(("", "max_norm", "total_norm"), args, strict=False)) | keys
        if recorder.active and not torch.compiler.is_compiling():
            with recorder.contain_errors(), recorder.own_torch():
                lines.gets(given.get("", given.get("parameters")))
        clipped(given["max_norm"], given["total_norm"])
        return (losses is not None and losses.clips()) or None

    def scaled(left: bool, _: Any) -> None:
        if losses is not None:  # they are still scaled, and clipped in place
            losses.backward_ended()

    def clips(*args: Any, **keys: Any) -> Any:
        return args[1] if len(args) > 1 else keys.get("max_norm")

    def bounds(*args: Any, **keys: Any) -> None:
        if recorder.active and not torch.compiler.is_compiling():
            with recorder.contain_errors():
                bound = args[1] if len(args) > 1 else keys["clip_value"]
                recorder.value(CLIP_VALUE, float(bound))

    patches.also_undo(partial(readback.finish, recorder))
    patches.ends(clip_grad, _BY_VALUE, bounds, also=(torch.nn.utils.__name__,))
    lost = "clipping by functions imported before the recording"
    if optional(clip_grad.__name__, _SCALING, lost) is not None:
        patches.ends(clip_grad, _SCALING, scales, scaled)
    else:
        patches.ends(clip_grad, _CLIPPING, clips, clipped, also=(torch.nn.utils.__name__,))


def _without_gradient(parameters: Any) -> int | None:
    """Returns how many parameters there are, where none has a gradient; None: one may have."""
    if isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    if not isinstance(parameters, (list, tuple)) or any(one.grad is not None for one in parameters):
        return None
    return len(parameters)


HOOK = Hook("clipping", _hook)
