"""Records states of modules that are loaded in vain, or break ties of parameters.

`state_dict()` copies nothing. A state that was kept while the parameters were trained has their
values of now, so loading it restores nothing. With `strict=False`, neither does a state whose names
differ from those of the module by a prefix.

`head.weight = emb.weight` ties parameters. `load_state_dict(assign=True)` and `to_empty()` give
each module a parameter of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...format.loop_names import BROKEN_TIE, KEPT_STATE, OTHER_NAMES, OWN_STATE
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import Stacks, program_place
from ..training.optimizer_parameters import PLAIN

_MAX_TIES = 8


def _shared_names(module: nn.Module) -> list[tuple[str, ...]]:
    """Returns the names of each parameter that modules below share."""
    names: dict[int, list[str]] = {}
    for name, one in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(one), []).append(name)
    several = (tuple(same) for same in names.values() if len(same) > 1)
    return list(islice(several, _MAX_TIES))


def _untied(module: nn.Module, before: list[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yields the names of two parameters of each of the ties `before` that is broken."""
    now = dict(module.named_parameters(remove_duplicate=False)) if before else {}
    for names in before:
        first, *others = names
        for other in others:
            if first in now and other in now and now[first] is not now[other]:
                yield first, other
                break


_MAX_STATES = 256


class _Taken(NamedTuple):
    tensor: weakref.ref[torch.Tensor]  # a parameter's, within the state
    version: int  # of its memory
    step: int
    place: str  # file.py:12


class KeptStates:
    """Writes values named KEPT_STATE and OTHER_NAMES where a state is loaded in vain, and
    BROKEN_TIE."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder = recorder
        self._is_library = stacks.is_library
        self._taken: dict[int, _Taken] = {}  # by the tensor's id
        self._not_loaded: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()

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
            self._taken = {key: one for key, one in self._taken.items() if one.tensor() is not None}
            if len(self._taken) >= _MAX_STATES:
                self._taken.clear()
        self._taken[id(tensor)] = _Taken(
            weakref.ref(tensor),
            tensor._version,
            self._recorder.step,
            self._place(frame),
        )

    def loads(
        self,
        module: nn.Module,
        state_dict: Any = None,
        strict: bool = True,
        assign: bool = False,
        **_: Any,
    ) -> Any:
        """Looks at a state before it is loaded."""
        if not self._recorder.active:
            return None
        if self._taken:
            self._looks_at(module, state_dict)
        return module, state_dict, caller(), _shared_names(module) if assign else []

    def loaded(
        self, began: tuple[nn.Module, Any, FrameType, list[tuple[str, ...]]], result: Any
    ) -> None:
        """Records broken ties, and that nothing was loaded because of a prefix; 0 once something
        is."""
        module, state, frame, before = began
        self._breaks(module, frame, "load_state_dict(assign=True)", before)
        missing, unexpected = set(result.missing_keys), set(result.unexpected_keys)
        own = dict(module.named_parameters())
        if not own.keys() <= missing:
            if module in self._not_loaded:
                self._recorder.value(self._not_loaded.pop(module), 0.0)
            return
        prefixes = _prefixes(own, state, unexpected)
        if prefixes is not None:
            words = [self._place(frame), type(module).__name__, *prefixes]
            self._not_loaded[module] = name = f"{OTHER_NAMES}{'/'.join(words)}"
            self._recorder.value(name, float(len(own)))

    def empties(self, module: nn.Module, *_: Any, **__: Any) -> Any:
        """Looks at a module before it gets new memory."""
        return (module, caller(), _shared_names(module)) if self._recorder.active else None

    def emptied(
        self, began: tuple[nn.Module, FrameType, list[tuple[str, ...]]], result: Any
    ) -> None:
        """Records broken ties."""
        module, frame, before = began
        self._breaks(module, frame, "to_empty()", before)

    def _breaks(
        self, module: nn.Module, frame: FrameType, call: str, before: list[tuple[str, ...]]
    ) -> None:
        for first, other in _untied(module, before):
            name = f"{BROKEN_TIE}{self._place(frame)}/{call}/{first}/{other}"
            self._recorder.value(name, 1.0)

    def _looks_at(self, module: nn.Module, state_dict: Any) -> None:
        found = next((one for one in map(self._known, _floats(state_dict)) if one), None)
        if found is None:
            return
        with self._recorder.contain_errors(), self._recorder.own_torch():
            own = {place for one in module.parameters() if (place := _memory(one))}
            held = [_memory(one) for one in _floats(state_dict)]
            if not own or not own <= set(held):
                return
            name, tensor = f"{self._place(caller(2))}/{type(module).__name__}", found.tensor()
            if tensor is not None and tensor._version == found.version:
                self._recorder.value(f"{OWN_STATE}{name}", 1.0)
            elif found.step < self._recorder.step:
                self._recorder.value(f"{KEPT_STATE}{found.place}/{name}", float(found.step))

    def _known(self, tensor: torch.Tensor) -> _Taken | None:
        """Returns where the state of a tensor was taken."""
        found = self._taken.get(id(tensor))
        return found if found is not None and found.tensor() is tensor else None

    def _place(self, frame: FrameType | None) -> str:
        return program_place(frame, self._is_library)


def _prefixes(
    own: Mapping[str, nn.Parameter], state: Any, unexpected: set[str]
) -> tuple[str, str] | None:
    """Returns what names of the state and of the module begin with, where they are else the same;
    None where they are not."""
    first = next(iter(own), "")
    for name in unexpected:
        of_state = name[: -len(first)] if name.endswith(first) else ""
        of_module = first[: -len(name)] if first.endswith(name) else ""
        pairs = {key: of_state + key.removeprefix(of_module) for key in own}
        if all(
            other in unexpected and getattr(state[other], "shape", None) == own[key].shape
            for key, other in pairs.items()
        ):
            return of_state, of_module
    return None


def _floats(state: Any) -> Iterator[torch.Tensor]:
    """Yields the plain tensors of a state that can be trained."""
    values = state.values() if isinstance(state, Mapping) else ()
    return (
        one
        for one in values
        if type(one) in PLAIN
        and one.is_floating_point()
        and not one.is_inference()  # has no version
    )


def _memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Returns address and elements of a tensor; None if it has no memory of its own."""
    plain = type(tensor) in PLAIN and tensor.layout == torch.strided
    if not plain or tensor.device.type == "meta" or not tensor.numel():
        return None
    return tensor.data_ptr(), tensor.numel()


def _hook(context: HookContext) -> None:
    patches = context.patches
    states = KeptStates(context.recorder, context.stacks)
    patches.ends(nn.Module, "state_dict", states.takes, states.taken, lost=_LOST)
    patches.ends(nn.Module, "load_state_dict", states.loads, states.loaded)
    patches.ends(nn.Module, "to_empty", states.empties, states.emptied)


_LOST = "states of modules that share the memory of parameters"
HOOK = Hook(_LOST, _hook)
