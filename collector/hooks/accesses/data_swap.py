"""Records accesses to storages outside operators: `p.data = other` and `torch.save`.

They matter only to other threads, so recording starts with the second one. Assigning `data` counts
as a write to the parameter's previous storage: a concurrent reader sees the old or the new data.
"""

from __future__ import annotations

from typing import Any

import torch

from ...format.names import EXCHANGED_DATA, SAVED
from ...recorder.private_names import optional
from ..base import Hook, HookContext
from .synthetic_accesses import SyntheticAccess, SyntheticAccesses, extent_of, whole


def _hook(context: HookContext) -> None:
    """Records assignments to parameters' data, and reads by torch.save."""
    accesses, patches = SyntheticAccesses(context.recorder, context.stacks), context.patches
    untyped: Any = torch.UntypedStorage

    def assigns(parameter: torch.Tensor, data: torch.Tensor | None) -> None:
        held, given = extent_of(parameter), extent_of(data)
        if held is not None and (given is None or held.storage != given.storage):
            accesses.note(EXCHANGED_DATA, [SyntheticAccess(held, write=True)])

    def reads(storage: Any) -> None:
        if isinstance(storage, untyped) and (extent := whole(storage)):
            accesses.note(SAVED, [SyntheticAccess(extent, write=False)])

    def reads_data(_: Any, __: Any = None, data: Any = None, *___: Any, **____: Any) -> None:
        reads(data)

    lost = "exchanges of parameters' data"
    base = optional("torch._C", "TensorBase", lost)
    if base is not None:
        # Only of parameters: other tensors are replaced as a whole.
        patches.setter(base, "data", torch.nn.Parameter, assigns, lost)
    lost = "reads of storages by torch.save"
    writer = optional("torch._C", "PyTorchFileWriter", lost)
    if writer is not None:
        patches.ends(writer, "write_record", reads_data, when_concurrent=True, lost=lost)
    # The file format before torch 1.6.
    storages = optional("torch._C", "StorageBase", lost)
    if storages is not None:
        patches.ends(storages, "_write_file", reads, self_alone=True, when_concurrent=True)


HOOK = Hook("accesses (data_swap)", _hook, levels=("access", "numerics"), native=True)
