"""What a program does with storages past the operators: it puts another one into a parameter
(`p.data = other`, as `model.to` does), or writes one into a file (`torch.save`).

Noted where there is a second thread, for whom alone it matters. To exchange the data is a write to
what the parameter had until then: who reads that may read the old or the new, as chance will have
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...format.names import EXCHANGED_DATA, SAVED
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches
from ..stacks import Stacks
from .synthetic_accesses import Touch, Touches, extent_of, whole


def install(recorder: Recorder, stacks: Stacks) -> Callable[[], None]:
    """Note assignments to parameters' data, and what torch.save reads."""
    touches, patches = Touches(recorder, stacks), Patches()
    untyped: Any = torch.UntypedStorage

    def assigns(parameter: torch.Tensor, data: torch.Tensor | None) -> None:
        held, given = extent_of(parameter), extent_of(data)
        if held is not None and (given is None or held.storage != given.storage):
            touches.note(EXCHANGED_DATA, [Touch(held, write=True)])

    def reads(storage: Any) -> None:
        if isinstance(storage, untyped) and (lies := whole(storage)):
            touches.note(SAVED, [Touch(lies, write=False)])

    def reads_data(_: Any, __: Any = None, data: Any = None, *___: Any, **____: Any) -> None:
        reads(data)

    lost = "exchanges of parameters' data"
    base = optional("torch._C", "TensorBase", lost)
    if base is not None:
        # Of parameters only: others are replaced as a whole.
        patches.setter(base, "data", torch.nn.Parameter, assigns, lost)
    lost = "reads of storages by torch.save"
    writer = optional("torch._C", "PyTorchFileWriter", lost)
    if writer is not None:
        patches.ends(writer, "write_record", reads_data, when_concurrent=True, lost=lost)
    # Of the format before torch 1.6.
    storages = optional("torch._C", "StorageBase", lost)
    if storages is not None:
        patches.ends(storages, "_write_file", reads, self_alone=True, when_concurrent=True)
    return patches.undo


HOOK = Hook(
    "accesses (data_swap)",
    lambda context: install(context.recorder, context.stacks),
    levels=("access", "numerics"),
    native=True,
)
