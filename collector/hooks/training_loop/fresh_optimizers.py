"""Records optimizers that begin with nothing, though the file that their model was loaded from has
the state of such an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from ...format.loop_names import FRESH_OPTIMIZER
from ...recorder.recorder import Recorder
from ..training.batches import few_of, raw_bytes
from ..training.optimizer_parameters import PLAIN

_MAX_FILES = 8
_MAX_TENSORS = 2000
_MAX_DEPTH = 3
"""Of dictionaries in a file."""


class _File(NamedTuple):
    place: str  # file.py:12 of torch.load
    path: str
    groups: list[list[dict[str, Any]]]  # of each optimizer
    tensors: frozenset[int]  # hashes


class FreshOptimizers:
    """Writes a value named FRESH_OPTIMIZER at the first step of such an optimizer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: dict[str, _File] = {}
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def loaded(self, place: str, path: str, content: Any) -> None:
        """Looks at what torch.load has returned."""
        if not isinstance(content, Mapping):
            return
        with self._recorder.own_torch(), torch.no_grad():
            groups = [one["param_groups"] for one in _states(content) if one["state"]]
            if groups:
                tensors = islice(_tensors(content), _MAX_TENSORS)
                self._files.pop(path, None)
                self._files[path] = _File(place, path, groups, frozenset(map(tensor_hash, tensors)))
                if len(self._files) > _MAX_FILES:
                    self._files.pop(next(iter(self._files)))

    def stepping(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps for the first time."""
        if not self._files or optimizer in self._stepped:
            return
        self._stepped.add(optimizer)
        if not self._recorder.active or optimizer.state:
            return
        own = [one for group in optimizer.param_groups for one in group["params"]]
        with self._recorder.own_torch(), torch.no_grad():
            if not own or not all(map(is_plain, own)):
                return
            hashes = {*map(tensor_hash, own)}
            for file in self._files.values():
                alike = any(_alike(groups, optimizer.param_groups) for groups in file.groups)
                if alike and hashes <= file.tensors:
                    name = f"{FRESH_OPTIMIZER}{file.place}/{type(optimizer).__name__}{file.path}"
                    self._recorder.value(name, float(len(own)))


def _states(content: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yields the states of optimizers in nested dictionaries."""
    if not isinstance(content, Mapping):
        return
    if isinstance(content.get("state"), Mapping) and isinstance(content.get("param_groups"), list):
        yield content
    elif depth < _MAX_DEPTH:
        for one in content.values():
            yield from _states(one, depth + 1)


def _tensors(content: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(content, Mapping) and depth < _MAX_DEPTH and "param_groups" not in content:
        for one in content.values():
            yield from _tensors(one, depth + 1)
    elif is_plain(content):
        yield content


def is_plain(value: Any) -> bool:
    """Returns whether elements of a tensor can be read without a wait."""
    return type(value) in PLAIN and value.device.type == "cpu" and value.layout == torch.strided


def tensor_hash(tensor: torch.Tensor) -> int:
    """Returns a hash of some elements of a tensor and of its shape."""
    few = few_of(tensor) if tensor.dim() else tensor.detach().reshape(1)
    return hash((tuple(tensor.shape), raw_bytes(few)))


def _alike(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> bool:
    """Whether two lists of groups have the same settings and as many parameters."""
    return len(saved) == len(own) and all(
        _settings(one) == _settings(other) for one, other in zip(saved, own, strict=True)
    )


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        name: value
        for name, value in group.items()
        if isinstance(value, (bool, int, float, tuple, list)) and name != "params"
    }
    first = plain.pop("initial_lr", None)
    return plain | {"lr": first or plain.get("lr"), "params": len(group["params"])}
