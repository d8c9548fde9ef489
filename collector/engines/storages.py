"""Tracks storages for the portable engine: their last write, and the bits after it.

The native engine has the same in `observer/storages/storages.h`.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, NamedTuple

import torch
from torch.multiprocessing import reductions

from ..journal.own_lock import own_lock
from ..numerics.fingerprint import BLOCK, can_read
from ..numerics.host_fingerprint import Numbers, flat_hash

_WeakStorage: Any = reductions.StorageWeakRef
_MAX_RANGES = 64  # of one storage
_MAX_STORAGES = 65536
_PURGE_FROM = 1024
_PROBES = 8  # blocks
_BLOCK_BYTES = 4 * BLOCK


class ByteRange(NamedTuple):
    """The bytes that a tensor covers of its storage."""

    begin: int
    end: int
    layout: tuple[int, ...] | None  # shape and strides where there are gaps

    @classmethod
    def of(cls, tensor: torch.Tensor) -> ByteRange:
        """Returns the bytes of a strided tensor."""
        item, sizes, strides = tensor.element_size(), tensor.shape, tensor.stride()
        begin = int(tensor.storage_offset()) * item
        if not tensor.numel():
            return cls(begin, begin, None)
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        end = begin + (int(last) + 1) * item
        whole = tensor.numel() * item == end - begin
        return cls(begin, end, None if whole else (*map(int, sizes), *map(int, strides)))


def is_readable(tensor: torch.Tensor) -> bool:
    """Returns True if the tensor's elements can be read directly from existing memory."""
    if not can_read(tensor) or tensor.is_conj() or tensor.is_neg():
        return False
    return not tensor.numel() or ByteRange.of(tensor).end <= tensor.untyped_storage().nbytes()


class _Range:
    """Bytes of a storage, and their values when last read."""

    __slots__ = ("data", "extent", "finite", "hash", "made", "owned", "probe", "serial", "version")

    def __init__(
        self,
        tensor: torch.Tensor,
        found: Numbers,
        *,
        written: bool,
        made: bool,
        owned: bool,
        serial: int,
    ) -> None:
        self.made = made  # written by an operator, not only read
        self.owned = owned  # an operator or a collective wrote it, perhaps before it was changed
        self.serial = serial
        self.extent = ByteRange.of(tensor)
        self.data = tensor.untyped_storage().data_ptr()
        # torch increments the version when the operator returns, after the tensor was read.
        self.version = _version(tensor) + (written and not tensor.is_inference())
        self.finite = found.finite
        self.hash = found.hash
        self.probe = _probe(tensor) if self.extent.layout is None else None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Returns True if the tensor has these bytes, and its version counter has not changed."""
        return (
            self.extent == ByteRange.of(tensor)
            and self.data == tensor.untyped_storage().data_ptr()
            and self.version == _version(tensor)
        )

    def hides(self, other: _Range) -> bool:
        """Returns True if an operator wrote it later than the other, to overlapping bytes."""
        return (
            self.made
            and self.serial > other.serial
            and self.data + self.extent.begin < other.data + other.extent.end
            and other.data + other.extent.begin < self.data + self.extent.end
        )


class StorageState:
    """State of one storage."""

    __slots__ = ("derived", "finite", "foreign", "in_flight", "lay", "ranges", "storage", "unset")

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = _WeakStorage(storage)  # keeps its address from being reused
        self.foreign = False
        self.in_flight = False  # a collective wrote it, and no operator has read it since
        self.finite = False  # all of it, for certain
        self.unset = False  # uninitialised: no operator has written to it
        self.lay = 0  # probe of the uninitialised bytes
        self.derived = False  # computed from uninitialised memory
        self.ranges: deque[_Range] = deque(maxlen=_MAX_RANGES)

    def forget(self, tensor: torch.Tensor) -> None:
        """Drops the known ranges of the tensor's bytes, which have changed."""
        self.unset = False
        begin, end, _ = ByteRange.of(tensor)
        kept = [r for r in self.ranges if not (r.extent.begin < end and begin < r.extent.end)]
        self.ranges = deque(kept, maxlen=_MAX_RANGES)

    def remember(self, tensor: torch.Tensor, found: Numbers | None, **more: Any) -> None:
        """Stores the tensor's fingerprint; None: the device copy is pending."""
        self.forget(tensor)
        if found is not None:
            self.ranges.append(_Range(tensor, found, **more))


class _Found(NamedTuple):
    """State of an input when an operator begins."""

    foreign: bool = False  # no recorded operator wrote it, or it came from a collective
    finite: bool | None = None
    expected: int | None = None  # last hash of an input that has changed since
    owned: bool = False  # with `expected`: an operator or a collective had written it
    unset: bool = False  # uninitialised memory, unchanged
    derived: bool = False  # computed from uninitialised memory


class LiveStorages:
    """All live storages that recorded operators wrote or read."""

    def __init__(self) -> None:
        self._all: dict[int, StorageState] = {}
        self._purge_at = _PURGE_FROM
        self._serials = itertools.count()
        self._lock = own_lock()

    def look(self, tensor: torch.Tensor) -> _Found:
        """Returns the state of a readable input."""
        if self._is_unset(tensor):
            return _Found(unset=True)
        with self._lock:
            known = self._find(tensor)
            if known is None:
                return _Found(foreign=len(self._all) < _MAX_STORAGES)
            derived = known.derived
            same = next((r for r in known.ranges if r.is_of(tensor)), None)
            if same is None:
                return _Found(known.foreign, known.finite or None, derived=derived)
        changed = same.probe is not None and _probe(tensor) != same.probe
        with self._lock:
            # It counts only if no recorded operator wrote meanwhile, also through another storage
            # of the same memory, as of numpy and DLPack.
            known = self._find(tensor) if changed else None
            changed = known is not None and any(r is same for r in known.ranges)
            changed = changed and not any(
                r.hides(same) for other in self._all.values() for r in other.ranges
            )
        expected = same.hash if changed else None
        return _Found(finite=same.finite, expected=expected, owned=same.owned, derived=derived)

    def _is_unset(self, tensor: torch.Tensor) -> bool:
        with self._lock:
            known = self._find(tensor)
            if known is None or not known.unset:
                return False
        return _probe_of_all(tensor) == known.lay

    def made_unset(self, tensor: torch.Tensor) -> None:
        """Notes a tensor of uninitialised memory, which may be filled without an operator."""
        if not is_readable(tensor) or not tensor.numel() or tensor.device.type != "cpu":
            return
        lay = _probe_of_all(tensor)
        with self._lock:
            known = self._find_or_add(tensor)
            if known is not None:
                known.ranges.clear()
                known.foreign = known.unset = True
                known.in_flight = known.finite = known.derived = False
                known.lay = lay

    def wrote(
        self, tensor: torch.Tensor, found: Numbers | None, *, result: bool, derived: bool
    ) -> None:
        """Notes that an operator wrote the tensor, an input or a `result`.

        `derived`: it was computed from uninitialised memory.
        """
        extent = ByteRange.of(tensor)
        whole = (
            extent.layout is None
            and extent.begin == 0
            and extent.end >= tensor.untyped_storage().nbytes()
        )
        with self._lock:
            fresh = self._find(tensor) is None
            known = self._find_or_add(tensor)
            if known is None:
                return
            if whole:
                known.foreign = known.in_flight = known.derived = False
            known.derived = known.derived or derived
            finite = found is not None and found.finite
            known.finite = finite and (whole or fresh or known.finite)
            known.remember(
                tensor, found, written=not result, made=True, owned=True, serial=next(self._serials)
            )

    def read(self, tensor: torch.Tensor, found: Numbers | None) -> None:
        """Notes that an operator read a tensor that no recorded operator wrote."""
        with self._lock:
            fresh = self._find(tensor) is None
            known = self._find_or_add(tensor)
            if known is not None:
                extent = ByteRange.of(tensor)
                owned = known.in_flight or any(
                    r.owned and r.extent.begin < extent.end and extent.begin < r.extent.end
                    for r in known.ranges
                )
                known.foreign = known.foreign or fresh
                known.in_flight = False
                known.remember(
                    tensor,
                    found,
                    written=False,
                    made=False,
                    owned=owned,
                    serial=next(self._serials),
                )

    def writes(self, tensor: torch.Tensor) -> None:
        """Notes that an operator is about to write the tensor."""
        with self._lock:
            known = self._find(tensor)
            if known is not None:
                known.forget(tensor)

    def wrote_unread(self, tensor: torch.Tensor) -> None:
        """Notes that a filtered operator wrote the tensor."""
        with self._lock:
            known = self._find(tensor)
            if known is not None:
                known.forget(tensor)
                known.finite = False

    def made_unread(self, tensor: torch.Tensor) -> None:
        """Notes that a filtered operator allocated the tensor."""
        with self._lock:
            if self._find(tensor) is None:
                known = self._find_or_add(tensor)
                if known is not None:
                    known.finite = True

    def awaits(self, tensor: torch.Tensor) -> None:
        """Notes that a collective will write the tensor."""
        with self._lock:
            known = self._find_or_add(tensor)
            if known is not None:
                known.forget(tensor)
                known.foreign = known.in_flight = True
                known.finite = known.derived = False

    def awaited(self, tensor: torch.Tensor) -> bool:
        """Returns True if a collective may be writing the tensor."""
        with self._lock:
            known = self._find(tensor)
            return known is not None and known.in_flight

    def _find(self, tensor: torch.Tensor) -> StorageState | None:
        key = tensor.untyped_storage()._cdata
        known = self._all.get(key)
        if known is not None and known.storage.expired():
            del self._all[key]
            return None
        return known

    def _find_or_add(self, tensor: torch.Tensor) -> StorageState | None:
        known = self._find(tensor)
        if known is not None:
            return known
        if len(self._all) >= self._purge_at:
            self._all = {k: one for k, one in self._all.items() if not one.storage.expired()}
            self._purge_at = min(_MAX_STORAGES, max(_PURGE_FROM, 2 * len(self._all)))
        if len(self._all) >= _MAX_STORAGES:
            return None
        storage = tensor.untyped_storage()
        known = self._all[storage._cdata] = StorageState(storage)
        return known


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _probe(tensor: torch.Tensor) -> int:
    """Returns a hash of the tensor's bytes in memory."""
    begin, end, _ = ByteRange.of(tensor)
    return _hash_of_some(tensor, begin, end)


def _probe_of_all(tensor: torch.Tensor) -> int:
    """Returns a hash of the bytes of the tensor's storage."""
    return _hash_of_some(tensor, 0, tensor.untyped_storage().nbytes())


def _hash_of_some(tensor: torch.Tensor, begin: int, end: int) -> int:
    """Hashes a range of the tensor's storage, or evenly spaced blocks of a long one."""
    raw = torch.empty(0, dtype=torch.uint8).set_(
        tensor.untyped_storage(), begin, (end - begin,), (1,)
    )
    blocks = len(raw) // _BLOCK_BYTES
    if blocks > _PROBES:
        first = [i * (blocks - 1) // (_PROBES - 1) * _BLOCK_BYTES for i in range(_PROBES)]
        raw = torch.cat([raw[f : f + _BLOCK_BYTES] for f in first])
    return flat_hash(raw)
