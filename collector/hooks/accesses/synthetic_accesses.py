"""Accesses that no operator makes, written as those of an operator by a name of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...format.record_kinds import OpScope
from ...journal import clock
from ...journal.journal import ACCESS_RECORD, NO_SEQUENCE, RECORD, AccessFlag, Kind
from ...recorder.recorder import Recorder
from ..stacks import Stacks
from ..training.optimizer_parameters import local_part

_NO_VERSION = 2**32 - 1
"""It changes no bytes, and so none is the version that it found."""


class Extent(NamedTuple):
    """Where a tensor lies, in bytes."""

    storage: int  # address
    offset: int
    size: int


class Touch(NamedTuple):
    """One access."""

    extent: Extent
    write: bool
    birth: bool = False  # it is new there

    @property
    def flags(self) -> int:
        """As records have it."""
        return AccessFlag.WRITE * self.write | AccessFlag.BIRTH * self.birth


_NOTHING = Touch(Extent(0, 0, 0), False)


class Touches:
    """Writes them, with the place in the program."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._stacks = stacks

    def note(self, name: str, touches: Sequence[Touch], instant: int = 0) -> None:
        """The calling thread does what is called `name`, and touches these by that.

        `instant`: when it did, where that was not now.
        """
        recorder = self._recorder
        state = recorder.thread()
        if not touches or not recorder.active or state.busy:
            return
        # Accesses belong to the operator that is stored next.
        for i in range(0, len(touches), 2):
            one, other = touches[i], touches[i + 1] if i + 1 < len(touches) else _NOTHING
            flags = one.flags | other.flags << 8
            accesses = ACCESS_RECORD.pack(
                Kind.ACCESS,
                min(2, len(touches) - i),
                flags,
                _NO_VERSION,
                *one.extent,
                _NO_VERSION,
                0,
                *other.extent,
            )
            state.journal.append(*RECORD.unpack(accesses))
        instant = instant or clock.now()
        recorder.put(
            state,
            Kind.OP,
            scope=OpScope.function,
            name=recorder.intern(name),
            start=instant,
            end=instant,
            sequence=NO_SEQUENCE,
            stack=self._stacks.capture() or state.started,
        )


def extent_of(tensor: torch.Tensor | None) -> Extent | None:
    """Where a tensor lies, gaps included; None: nowhere that could be told."""
    if tensor is None:
        return None
    part = local_part(tensor)
    if type(part) not in (torch.Tensor, torch.nn.Parameter) or part.layout is not torch.strided:
        return None
    try:
        address = part.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # of what vmap or a tracer sees
        return None
    if not address or not part.numel():
        return None
    last = sum((n - 1) * stride for n, stride in zip(part.shape, part.stride(), strict=True))
    item = part.element_size()
    return Extent(address, part.storage_offset() * item, (last + 1) * item)


def whole(storage: torch.UntypedStorage) -> Extent | None:
    """All of a storage; None: it has no memory."""
    try:
        address = storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return Extent(address, 0, storage.nbytes()) if address else None
