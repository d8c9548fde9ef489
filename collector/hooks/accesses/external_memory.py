"""Storages that no operator makes: memory of numpy and others that becomes a tensor's, copies.

Their addresses are used again as soon as the array is gone, by another thread as well. So each that
is new counts as born; the same memory handed over again stays what it was.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...format.names import ARRIVALS, MADE_STORAGE
from ...journal import clock
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches
from ..stacks import Stacks
from ..threads.sync_events import Handovers
from .synthetic_accesses import Extent, Touch, Touches, extent_of, whole

_MAPPING = (
    "_new_using_fd_cpu",
    "_new_using_filename_cpu",
    "_new_shared_fd_cpu",
    "_new_shared_filename_cpu",
    "from_file",
)
"""What makes a storage of memory that is mapped: shared with other processes, or a file's."""
_SHARING = ("_share_fd_cpu_", "_share_filename_cpu_")
"""What moves a storage into such memory, unless it is there."""


class Arrivals:
    """Knows which memory lies where, as long as it is there."""

    def __init__(self, touches: Touches, handovers: Handovers) -> None:
        self._touches = touches
        self._handovers = handovers
        self._owners: dict[int, weakref.ref[Any]] = {}  # by address

    def arrived(self, name: str, tensor: torch.Tensor, memory: Any) -> None:
        """The calling thread made `tensor` of `memory`, by the function `name`."""
        owner = _owner(memory)
        if isinstance(owner, torch.Tensor):
            return
        extent = extent_of(tensor)
        if extent is None or not self._is_new(extent.storage, owner):
            return
        if self._handovers.concurrent:
            self._touches.note(name, [Touch(extent, write=True, birth=True)])

    def _is_new(self, address: int, owner: Any) -> bool:
        known = self._owners.get(address)
        if known is not None and known() is owner:
            return False

        def gone(reference: weakref.ref[Any]) -> None:
            if self._owners.get(address) is reference:
                del self._owners[address]

        try:
            self._owners[address] = weakref.ref(owner, gone)
        except TypeError:  # nobody can tell whether it is the one that was there before
            self._owners.pop(address, None)
        return True


def _owner(memory: Any) -> Any:
    """What `memory` lies in: the array that it is a view of, or what that was made of."""
    array: Any = vars(sys.modules.get("numpy", object)).get("ndarray", ())
    while isinstance(memory, array) and memory.base is not None:
        base = memory.base
        if not isinstance(base, (array, torch.Tensor)) and not type(base).__weakrefoffset__:
            break
        memory = base
    return memory


def install(recorder: Recorder, handovers: Handovers, stacks: Stacks) -> Callable[[], None]:
    """Note what torch's functions make tensors of."""
    touches, patches = Touches(recorder, stacks), Patches()
    arrivals = Arrivals(touches, handovers)
    is_compiling = torch.compiler.is_compiling

    def arrives(name: str) -> tuple[Callable[..., Any], ...]:
        def begin(*args: Any, **_: Any) -> tuple[Any] | None:
            return args[:1] or None

        def done(given: tuple[Any], made: Any) -> None:
            if type(made) is torch.Tensor and not is_compiling() and _shares(made, *given):
                arrivals.arrived(f"torch.{name}", made, *given)

        return begin, done

    def born(_: Any, storage: Any) -> None:
        """A storage is made by its type, as `copy.deepcopy` does."""
        if handovers.concurrent and not is_compiling() and (extent := whole(storage)):
            touches.note(MADE_STORAGE, [Touch(extent, write=True, birth=True)])

    def shares(storage: Any) -> tuple[Any, int, Extent | None]:
        return storage, clock.now(), whole(storage)

    def shared(began: tuple[Any, int, Extent | None], _: Any) -> None:
        storage, instant, before = began
        extent = whole(storage)
        if extent and extent != before:
            # Its bytes have been copied there already, by an operator.
            touches.note(MADE_STORAGE, [Touch(extent, write=True, birth=True)], instant)

    for name in ARRIVALS:
        patches.ends(torch, name, *arrives(name))
    patches.maker(torch.UntypedStorage, born, "births of storages")
    lost = "births of shared storages"
    base = optional("torch._C", "StorageBase", lost)
    for name in _MAPPING if base is not None else ():
        patches.ends(base, name, None, born, when_concurrent=True, lost=lost)
    for name in _SHARING:
        patches.ends(
            torch.UntypedStorage,
            name,
            shares,
            shared,
            self_alone=True,
            when_concurrent=True,
            lost=lost,
        )
    return patches.undo


def _shares(tensor: torch.Tensor, memory: Any) -> bool:
    """Whether the tensor lies in the array or buffer that it was made of, and is no copy."""
    if isinstance(memory, (torch.Tensor, list, tuple, bool, int, float, complex)):
        return False
    interface = getattr(memory, "__array_interface__", None)
    return interface is None or bool(interface["data"][0] == tensor.data_ptr())


HOOK = Hook(
    "accesses (external_memory)",
    lambda context: install(context.recorder, context.sync, context.stacks),
    levels=("access", "numerics"),
    native=True,
)
