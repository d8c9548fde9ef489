"""Records states of modules that are loaded into the parameters whose memory they share.

`state_dict()` copies nothing. A state that was kept while the parameters were trained has their
values of now, so loading it restores nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...format.names import KEPT_STATE
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches, caller
from ..stacks import Stacks, program_place

_MAX_STATES = 256


class _Taken(NamedTuple):
    tensor: weakref.ref[torch.Tensor]  # a parameter's, within the state
    version: int  # of its memory
    step: int
    place: str  # file.py:12


class KeptStates:
    """Writes a value named KEPT_STATE where a state is loaded in vain."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._taken: dict[int, _Taken] = {}  # by the tensor's id

    def takes(self, module: nn.Module, *args: Any, **keywords: Any) -> FrameType | None:
        """Begins a state; None within one, or where nothing is recorded."""
        if args or keywords.get("destination") is not None or not self._recorder.active:
            return None
        return caller()

    def taken(self, frame: FrameType, state: Any) -> None:
        """Notes a state by one of its tensors, which a copy of the dictionary has as well."""
        tensor = next(_floats(state), None)
        if tensor is None:
            return
        if len(self._taken) >= _MAX_STATES:
            self._taken = {key: one for key, one in self._taken.items() if one.tensor()}
            if len(self._taken) >= _MAX_STATES:
                self._taken.clear()
        self._taken[id(tensor)] = _Taken(
            weakref.ref(tensor),
            tensor._version,
            self._recorder.step,
            self._place(frame),
        )

    def loads(self, module: nn.Module, state_dict: Any = None, *_: Any, **__: Any) -> None:
        """Looks at a state before it is loaded."""
        if not self._taken or not self._recorder.active:
            return
        found = next((one for one in map(self._kept, _floats(state_dict)) if one), None)
        if found is None or found.step >= self._recorder.step:
            return
        with self._recorder.contain_errors():
            own = {place for one in module.parameters() if (place := _memory(one))}
            held = [_memory(one) for one in _floats(state_dict)]
            if own and own <= set(held):
                kind = type(module).__name__
                name = f"{KEPT_STATE}{found.place}/{self._place(caller())}/{kind}"
                self._recorder.value(name, float(found.step))

    def _kept(self, tensor: torch.Tensor) -> _Taken | None:
        """Returns where the state of a tensor was taken, if the tensor has changed since."""
        found = self._taken.get(id(tensor))
        if found is None or found.tensor() is not tensor or found.version == tensor._version:
            return None
        return found

    def _place(self, frame: FrameType | None) -> str:
        return program_place(frame, self._is_library)


def _floats(state: Any) -> Iterator[torch.Tensor]:
    """Yields the plain tensors of a state that can be trained."""
    values = state.values() if isinstance(state, Mapping) else ()
    return (
        one
        for one in values
        if type(one) in (torch.Tensor, nn.Parameter) and one.is_floating_point()
    )


def _memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns address and elements of a tensor; None if it has no memory of its own."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.device.type == "meta" or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.numel()


def _hook(context: HookContext) -> Undo:
    patches = Patches()
    states = KeptStates(context.recorder, context.stacks)
    patches.ends(nn.Module, "state_dict", states.takes, states.taken, lost=_LOST)
    patches.ends(nn.Module, "load_state_dict", states.loads)
    return patches.undo


_LOST = "states of modules that share the memory of parameters"
HOOK = Hook(_LOST, _hook)
