"""What a program does with storages past the operators: it puts another one into a parameter
(`p.data = other`, as `model.to` does), or writes one into a file (`torch.save`).

Noted where there is a second thread, for whom alone it matters. To exchange the data is a write to
what the parameter had until then: who reads that may read the old or the new, as chance will have
it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ...format.names import EXCHANGED_DATA, SAVED
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..patches import Patches
from ..stacks import Stacks
from ..threads.sync_events import Handovers
from .synthetic_accesses import Touch, Touches, extent_of, whole


def install(recorder: Recorder, handovers: Handovers, stacks: Stacks) -> Callable[[], None]:
    """Note assignments to parameters' data, and what torch.save reads."""
    touches = Touches(recorder, stacks)
    parameter: Any = torch.nn.Parameter
    untyped: Any = torch.UntypedStorage
    plain: Any = torch.Tensor.data

    def assign(self: torch.Tensor, data: torch.Tensor) -> None:
        with recorder.contain_errors():
            held, given = extent_of(self), extent_of(data)
            if held is not None and (given is None or held.storage != given.storage):
                touches.note(EXCHANGED_DATA, [Touch(held, write=True)])
        plain.__set__(self, data)

    def read(storage: Any) -> None:
        with recorder.contain_errors():
            if handovers.concurrent and isinstance(storage, untyped) and (lies := whole(storage)):
                touches.note(SAVED, [Touch(lies, write=False)])

    def around_record(write: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(write)
        def recorded_write(self: Any, name: str, data: Any, *rest: Any) -> Any:
            read(data)
            return write(self, name, data, *rest)

        return recorded_write

    def around_file(write: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(write)
        def recorded_write(self: Any, *args: Any) -> Any:
            read(self)
            return write(self, *args)

        return recorded_write

    def watch() -> None:
        # Of parameters only: whatever asks torch.Tensor itself for `data` finds what it knows.
        parameter.data = property(plain.__get__, assign, None, plain.__doc__)

    patches, lost = Patches(), "reads of storages by torch.save"
    writer = optional("torch._C", "PyTorchFileWriter", lost)
    if writer is not None:
        patches.put(writer, "write_record", around_record(writer.write_record))
    # Of the format before torch 1.6.
    write_file = optional("torch", "UntypedStorage._write_file", lost)
    if write_file is not None:
        untyped._write_file = around_file(write_file)
    handovers.when_concurrent(watch)

    def uninstall() -> None:
        patches.undo()
        if "_write_file" in vars(untyped):
            del untyped._write_file
        if "data" in vars(parameter):
            del parameter.data

    return uninstall
