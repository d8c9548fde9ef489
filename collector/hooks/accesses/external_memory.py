"""Storages that no operator makes: memory of numpy and others that becomes a tensor's, copies.

Their addresses are used again as soon as the array is gone, by another thread as well. So each that
is new counts as born; the same memory handed over again stays what it was.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ...format.names import ARRIVALS, MADE_STORAGE
from ...journal import clock
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..stacks import Stacks
from ..threads.sync_events import Handovers
from .synthetic_accesses import Touch, Touches, extent_of, whole

_MAPPING = (
    "_new_using_fd_cpu", "_new_using_filename_cpu", "_new_shared_fd_cpu",
    "_new_shared_filename_cpu", "from_file",
)  # fmt: skip
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
    touches = Touches(recorder, stacks)
    arrivals = Arrivals(touches, handovers)
    module: Any = torch
    storage: Any = torch.UntypedStorage
    is_compiling = torch.compiler.is_compiling
    originals = {name: getattr(module, name) for name in ARRIVALS}

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def make(*args: Any, **keywords: Any) -> Any:
            made = original(*args, **keywords)
            if type(made) is torch.Tensor and not is_compiling() and args:
                with recorder.contain_errors():
                    if _shares(made, args[0]):
                        arrivals.arrived(f"torch.{name}", made, args[0])
            return made

        return make

    def begin(self: Any, *_: Any, **__: Any) -> None:
        """A storage is made by its type, as `copy.deepcopy` does."""
        with recorder.contain_errors():
            if handovers.concurrent and not is_compiling() and (extent := whole(self)):
                touches.note(MADE_STORAGE, [Touch(extent, write=True, birth=True)])

    def mapping(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def make(*args: Any, **keywords: Any) -> Any:
            made = original(*args, **keywords)
            begin(made)
            return made

        return make

    def sharing(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def share(self: Any, *args: Any, **keywords: Any) -> Any:
            instant, before = clock.now(), whole(self)
            shared = original(self, *args, **keywords)
            with recorder.contain_errors():
                extent = whole(self)
                if handovers.concurrent and extent and extent != before:
                    # Its bytes have been copied there already, by an operator.
                    touches.note(MADE_STORAGE, [Touch(extent, write=True, birth=True)], instant)
            return shared

        return share

    # What TorchScript takes for an operator, by the function itself.
    table = optional("torch.jit._builtins", "_get_builtin_table", "memory that tensors are made of")
    if table is None:  # a script that calls a replaced function would not compile
        return lambda: None
    builtins: dict[int, str] = table()
    replaced = {name: noting(name, original) for name, original in originals.items()}
    for name, replacement in replaced.items():
        setattr(module, name, replacement)
        if id(originals[name]) in builtins:
            builtins[id(replacement)] = builtins[id(originals[name])]
    own = dict(vars(storage))
    storage.__init__ = begin
    for names, make in ((_MAPPING, mapping), (_SHARING, sharing)):
        for name in names:
            method = optional("torch", f"UntypedStorage.{name}", "births of shared storages")
            if method is not None:
                replacement = make(method)
                setattr(
                    storage, name, staticmethod(replacement) if make is mapping else replacement
                )

    def uninstall() -> None:
        for name in ("__init__", *_MAPPING, *_SHARING):
            if name in own:
                setattr(storage, name, own[name])
            elif name in vars(storage):
                delattr(storage, name)
        for name, original in originals.items():
            setattr(module, name, original)
            builtins.pop(id(replaced[name]), None)

    return uninstall


def _shares(tensor: torch.Tensor, memory: Any) -> bool:
    """Whether the tensor lies in the array or buffer that it was made of, and is no copy."""
    if isinstance(memory, (torch.Tensor, list, tuple, bool, int, float, complex)):
        return False
    interface = getattr(memory, "__array_interface__", None)
    return interface is None or bool(interface["data"][0] == tensor.data_ptr())
