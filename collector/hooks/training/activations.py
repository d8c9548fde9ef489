"""Records norms of module outputs, at every `activations_every`-th step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ...format.record_kinds import GradientScope
from ...journal import clock
from ...journal.journal import RecordKind, float_bits
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook
from ..cuda_graphs import capturing
from .device_readback import DeviceReadback
from .modules import Modules
from .norms import Norms, has_norm
from .optimizer_parameters import local_part


def install(recorder: Recorder, modules: Modules, norms: Norms) -> Callable[[], None]:
    """Records the norm of the first tensor in each module's output."""
    every = recorder.options.activations_every
    readback = DeviceReadback()
    # A tensor of torch.func is one of a batch, and has no norm of its own.
    is_transformed = optional(
        "torch._C._functorch", "is_functorch_wrapped_tensor", "norms of what modules return"
    )
    if is_transformed is None:
        return lambda: None

    def returned(module: torch.nn.Module, path: int, output: Any) -> None:
        if recorder.step % every or not recorder.active:
            return
        tensor = local_part(next(tensors_in(output), None))
        if tensor is None or not tensor.is_floating_point() or not tensor.numel():
            return
        if recorder.thread().busy or tensor.is_sparse or tensor.device.type == "meta":
            return
        if not has_norm(tensor):
            return
        if is_transformed(tensor) or (tensor.is_cuda and capturing()):
            return
        with recorder.own_torch(), torch.no_grad():
            signature = f"\t{str(tensor.dtype).removeprefix('torch.')}\t{tensor.device}"
            fields: dict[str, Any] = {
                "scope": GradientScope.ACTIVATION,
                "name": path,
                "start": clock.now(),
                "step": recorder.step,
                "extra": tensor.numel(),
                "aux": int(module.training),
                "signature": recorder.intern(signature),
            }

            def write(found: torch.Tensor) -> None:
                number = float_bits(found.tolist()[0])
                recorder.put(recorder.thread(), RecordKind.GRADIENT, sequence=number, **fields)

            readback.enqueue(norms.of([tensor.detach()]), write)
            readback.drain(wait=False)

    if every:
        modules.returned = returned

    def uninstall() -> None:
        modules.returned = None
        readback.finish(recorder)

    return uninstall


def tensors_in(output: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of nested mappings, tuples and lists, in their order."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from tensors_in(value)


HOOK = Hook(
    "activations",
    lambda context: install(context.recorder, context.get(Modules), context.get(Norms)),
)
