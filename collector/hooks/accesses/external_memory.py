"""Records storages made outside operators, of memory from numpy and others, and by copying.

Their addresses are reused once the array is deleted, possibly by another thread. So each new one
counts as born; passing the same memory again does not.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...format.names import ARRIVALS, MADE_GENERATOR, MADE_STORAGE, SHARED_ADDRESS, SHARED_FILE
from ...journal import clock
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..threads.sync_events import SyncRecorder
from .synthetic_accesses import Extent, SyntheticAccess, SyntheticAccesses, extent_of, whole

_MAPPING = (
    "_new_using_fd_cpu",
    "_new_using_filename_cpu",
    "from_file",
)
"""Functions that make a storage of mapped memory: shared with other processes, or a file."""
_RECEIVING = ("_new_shared_fd_cpu", "_new_shared_filename_cpu")
"""Functions that make a storage of memory that another process shared: (..., handle, size)."""
_SHARING = ("_share_fd_cpu_", "_share_filename_cpu_")
"""Functions that move a storage into such memory, unless it is there already."""
_MAX_SHARED = 4096
"""Storages shared with other processes whose memory is recorded, per process: a data-loading worker
shares each of its batches."""


class ExternalMemory:
    """Keeps which memory is at which address, until it is freed."""

    def __init__(self, accesses: SyntheticAccesses, sync: SyncRecorder) -> None:
        self._accesses = accesses
        self._sync = sync
        self._owners: dict[int, weakref.ref[Any]] = {}  # by address
        self._shared: dict[int, int] = {}  # address -> file

    def on_tensor(self, name: str, tensor: torch.Tensor, memory: Any) -> None:
        """Records that the calling thread made `tensor` of `memory` by calling `name`."""
        owner = _owner(memory)
        if isinstance(owner, torch.Tensor):
            return
        extent = extent_of(tensor)
        if extent is None or not self._is_new(extent.storage, owner):
            return
        if self._sync.concurrent:
            self._accesses.note(name, [SyntheticAccess(extent, write=True, birth=True)])

    def on_shared(self, recorder: Recorder, storage: Any, handle: Any) -> None:
        """Records which memory a storage shares with other processes: the number of its file.

        `handle`: a file descriptor, or a name in /dev/shm. From now on order is recorded: other
        processes run beside this one.
        """
        self._sync.second_thread()
        self._sync.shares_memory = True
        extent = whole(storage)
        if extent is None or len(self._shared) >= _MAX_SHARED:
            return
        name = handle.decode() if isinstance(handle, bytes) else handle
        try:
            file = os.stat(f"/dev/shm{name}" if isinstance(name, str) else name).st_ino
        except OSError:
            return
        if self._shared.get(extent.storage) != file:
            self._shared[extent.storage] = file
            recorder.value(SHARED_ADDRESS, float(extent.storage))
            recorder.value(SHARED_FILE, float(file))

    def _is_new(self, address: int, owner: Any) -> bool:
        known = self._owners.get(address)
        if known is not None and known() is owner:
            return False

        def gone(reference: weakref.ref[Any]) -> None:
            if self._owners.get(address) is reference:
                del self._owners[address]

        try:
            self._owners[address] = weakref.ref(owner, gone)
        except TypeError:  # it cannot be compared with the previous owner
            self._owners.pop(address, None)
        return True


def _owner(memory: Any) -> Any:
    """Returns the owner of `memory`: the base of a view, or the object that base was made of."""
    array: Any = vars(sys.modules.get("numpy", object)).get("ndarray", ())
    while isinstance(memory, array) and memory.base is not None:
        base = memory.base
        if not isinstance(base, (array, torch.Tensor)) and not type(base).__weakrefoffset__:
            break
        memory = base
    return memory


def _arrival(external: ExternalMemory, name: str) -> tuple[Callable[..., Any], ...]:
    """Returns the hooks before and after a function of torch that makes a tensor of memory."""

    def begin(*args: Any, **_: Any) -> tuple[Any] | None:
        return args[:1] or None

    def done(given: tuple[Any], made: Any) -> None:
        compiling = torch.compiler.is_compiling()
        if type(made) is torch.Tensor and not compiling and _shares(made, *given):
            external.on_tensor(f"torch.{name}", made, *given)

    return begin, done


def _hook(context: HookContext) -> None:
    """Records new storages of functions that make tensors of external memory."""
    recorder, sync, patches = context.recorder, context.get(SyncRecorder), context.patches
    accesses = SyntheticAccesses(recorder, context.stacks)
    external = ExternalMemory(accesses, sync)
    is_compiling = torch.compiler.is_compiling

    def born(_: Any, storage: Any) -> None:
        """Records a storage made by its type, as `copy.deepcopy` does."""
        if sync.concurrent and not is_compiling() and (extent := whole(storage)):
            accesses.note(MADE_STORAGE, [SyntheticAccess(extent, write=True, birth=True)])

    def seeded(_: Any, generator: Any) -> None:
        """Records a random generator: an earlier one may have been at its address."""
        if sync.concurrent and not is_compiling():
            place = Extent(generator._cdata | 1, 0, 1)  # as operators that draw from it note it
            accesses.note(MADE_GENERATOR, [SyntheticAccess(place, write=True, birth=True)])

    def shares(storage: Any) -> tuple[Any, int, Extent | None]:
        return storage, clock.now(), whole(storage)

    def shared(began: tuple[Any, int, Extent | None], made: Any) -> None:
        storage, instant, before = began
        extent = whole(storage)
        if sync.concurrent and extent and extent != before:
            # An operator has already copied its bytes there.
            accesses.note(MADE_STORAGE, [SyntheticAccess(extent, write=True, birth=True)], instant)
        if isinstance(made, tuple):  # (file descriptor, size) or (manager, name, size)
            external.on_shared(recorder, storage, made[-2])

    def resized(began: tuple[Any, int, Extent | None], _: Any) -> None:
        """Records new memory of a storage: FSDP gives back what it gathers, and takes other."""
        storage, _instant, before = began
        if whole(storage) != before:
            born(None, storage)

    def maps(*args: Any, **_: Any) -> Any:
        return args[-2] if len(args) > 1 else None

    def mapped(handle: Any, storage: Any) -> None:
        born(None, storage)
        external.on_shared(recorder, storage, handle)

    for name in ARRIVALS:
        patches.ends(torch, name, *_arrival(external, name))
    patches.maker(torch.UntypedStorage, born, "births of storages")
    patches.maker(torch.Generator, seeded, "births of random generators")
    lost = "births of shared storages"
    base = optional("torch._C", "StorageBase", lost)
    for name in _MAPPING if base is not None else ():
        patches.ends(base, name, None, born, when_concurrent=True, lost=lost)
    if base is not None:
        patches.ends(
            base, "resize_", shares, resized, self_alone=True, when_concurrent=True, lost=lost
        )
    for name in _RECEIVING if base is not None else ():
        patches.ends(base, name, maps, mapped, lost=lost)
    for name in _SHARING:
        patches.ends(torch.UntypedStorage, name, shares, shared, self_alone=True, lost=lost)


def _shares(tensor: torch.Tensor, memory: Any) -> bool:
    """Returns whether the tensor shares the array or buffer it was made of, instead of copying."""
    if isinstance(memory, (torch.Tensor, list, tuple, bool, int, float, complex)):
        return False
    interface = getattr(memory, "__array_interface__", None)
    return interface is None or bool(interface["data"][0] == tensor.data_ptr())


HOOK = Hook("accesses (external_memory)", _hook, levels=("access", "numerics"), native=True)
