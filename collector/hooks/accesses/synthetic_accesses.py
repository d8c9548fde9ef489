"""Writes accesses made outside operators, as those of a pseudo-operator with its own name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ...format.record_kinds import OpScope
from ...journal import clock
from ...journal.journal import ACCESS_RECORD, NO_SEQUENCE, RECORD, AccessFlag, RecordKind
from ...recorder.recorder import Recorder
from ..stacks import Stacks
from ..training.optimizer_parameters import PLAIN, local_part

_NO_VERSION = 2**32 - 1
"""Version of a tensor whose access has none."""


class Extent(NamedTuple):
    """Range of memory of a tensor: address of its storage, then bytes."""

    storage: int  # address
    offset: int
    size: int


class SyntheticAccess(NamedTuple):
    """One access to memory."""

    extent: Extent
    write: bool
    birth: bool = False  # the storage is new

    @property
    def flags(self) -> int:
        """Returns the flags of a record."""
        return AccessFlag.WRITE * self.write | AccessFlag.BIRTH * self.birth


_NOTHING = SyntheticAccess(Extent(0, 0, 0), False)


class SyntheticAccesses:
    """Writes pseudo-operators with their accesses and stack."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._stacks = stacks

    def note(self, name: str, accesses: Sequence[SyntheticAccess], instant: int = 0) -> None:
        """Records that the calling thread makes accesses by a pseudo-operator `name`.

        `instant`: when it did, in ns; 0: now.
        """
        recorder = self._recorder
        state = recorder.thread()
        if not accesses or not recorder.active or state.busy:
            return
        # Accesses belong to the operator that is stored next.
        for i in range(0, len(accesses), 2):
            one, other = accesses[i], accesses[i + 1] if i + 1 < len(accesses) else _NOTHING
            flags = one.flags | other.flags << 8
            packed = ACCESS_RECORD.pack(
                RecordKind.ACCESS,
                min(2, len(accesses) - i),
                flags,
                _NO_VERSION,
                *one.extent,
                _NO_VERSION,
                0,
                *other.extent,
            )
            state.journal.append(*RECORD.unpack(packed))
        instant = instant or clock.now()
        recorder.put(
            state,
            RecordKind.OP,
            scope=OpScope.function,
            name=recorder.intern(name),
            start=instant,
            end=instant,
            sequence=NO_SEQUENCE,
            stack=self._stacks.capture() or state.started,
        )


def extent_of(tensor: torch.Tensor | None) -> Extent | None:
    """Returns a tensor's range of memory, gaps included; None: it has no known address."""
    if tensor is None:
        return None
    part = local_part(tensor)
    if type(part) not in PLAIN or part.layout is not torch.strided:
        return None
    try:
        address = part.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # a tensor of vmap or a tracer
        return None
    if not address or not part.numel():
        return None
    last = sum((n - 1) * stride for n, stride in zip(part.shape, part.stride(), strict=True))
    item = part.element_size()
    return Extent(address, part.storage_offset() * item, (last + 1) * item)


def whole(storage: torch.UntypedStorage) -> Extent | None:
    """Returns the range of a whole storage; None: it has no memory."""
    if storage.device.type == "meta":  # torch warns who asks one of a FakeTensor for its address
        return None
    try:
        address = storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return Extent(address, 0, storage.nbytes()) if address else None
