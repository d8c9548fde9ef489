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

from ..kinds import EXCHANGED_DATA, SAVED
from ..recorder import Recorder
from .handovers import Handovers
from .stacks import Stacks
from .touches import Touch, Touches, extent_of, whole


def install(recorder: Recorder, handovers: Handovers, stacks: Stacks) -> Callable[[], None]:
    """Note assignments to parameters' data, and what torch.save reads."""
    touches = Touches(recorder, stacks)
    parameter: Any = torch.nn.Parameter
    writer: Any = torch._C.PyTorchFileWriter
    untyped: Any = torch.UntypedStorage
    plain: Any = torch.Tensor.data
    write_record, write_file = writer.write_record, untyped._write_file

    def assign(self: torch.Tensor, data: torch.Tensor) -> None:
        with recorder.guarded():
            held, given = extent_of(self), extent_of(data)
            if held is not None and (given is None or held.storage != given.storage):
                touches.note(EXCHANGED_DATA, [Touch(held, write=True)])
        plain.__set__(self, data)

    def read(storage: Any) -> None:
        with recorder.guarded():
            if handovers.concurrent and isinstance(storage, untyped) and (lies := whole(storage)):
                touches.note(SAVED, [Touch(lies, write=False)])

    @wraps(write_record)
    def recorded_write(self: Any, name: str, data: Any, *rest: Any) -> Any:
        read(data)
        return write_record(self, name, data, *rest)

    @wraps(write_file)
    def recorded_write_file(self: Any, *args: Any) -> Any:  # of the format before 1.6
        read(self)
        return write_file(self, *args)

    def watch() -> None:
        # Of parameters only: whatever asks torch.Tensor itself for `data` finds what it knows.
        parameter.data = property(plain.__get__, assign, None, plain.__doc__)

    writer.write_record, untyped._write_file = recorded_write, recorded_write_file
    handovers.when_concurrent(watch)

    def uninstall() -> None:
        writer.write_record = write_record
        if "_write_file" in vars(untyped):
            del untyped._write_file
        if "data" in vars(parameter):
            del parameter.data

    return uninstall
