"""Keeps the parameters of each optimizer, so that they are named once and not at every step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from ...journal.journal import FIELDS, Kind
from ...recorder.recorder import Recorder
from .modules import Modules

RECORD_TYPE = np.dtype(list(FIELDS))


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """What records need of a parameter and does not change between steps."""

    reference: weakref.ref[torch.Tensor]
    name: int  # text
    signature: int  # text of dtype and device
    numel: int  # on this rank
    whole_numel: int  # on all ranks
    sharded: bool


@dataclass(frozen=True, slots=True)
class _Shared:
    """What steps of one optimizer share while its parameters stay the same."""

    known: list[ParameterInfo]
    records: bytes


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """The parameters of an optimizer at a step."""

    parameters: list[torch.Tensor]
    known: list[ParameterInfo]  # of each parameter
    records: bytes  # one per parameter's gradient, with the fields that do not change


class OptimizerParameters:
    """Keeps the parameters of all optimizers that have stepped.

    Naming 10,000 parameters takes a tenth of a second: too long for every step.
    """

    def __init__(self, recorder: Recorder, modules: Modules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._by_optimizer: weakref.WeakKeyDictionary[Optimizer, _Shared] = (
            weakref.WeakKeyDictionary()
        )
        self._unnamed: dict[
            int, tuple[weakref.ref[torch.Tensor], str]
        ] = {}  # parameters outside modules, by id
        self._signatures: dict[tuple[torch.dtype, torch.device], int] = {}

    def of(self, optimizer: Optimizer, ordinal: int) -> ParameterGroup:
        """Returns the optimizer's parameters, group after group."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        shared = self._by_optimizer.get(optimizer)
        if shared is None or not _same(parameters, shared.known):
            known = self._known(parameters, ordinal)
            shared = self._by_optimizer[optimizer] = _Shared(known, _records(known, ordinal))
        return ParameterGroup(parameters, shared.known, shared.records)

    def others(self) -> Iterator[tuple[torch.Tensor, ParameterInfo]]:
        """Yields parameters of called models that no optimizer has stepped."""
        self._modules.refresh()
        held = {
            id(parameter)
            for shared in list(self._by_optimizer.values())
            for one in shared.known
            if (parameter := one.reference()) is not None
        }
        for parameter, name in self._modules.parameters():
            if id(parameter) not in held:
                yield parameter, self._one(parameter, name)

    def names(self) -> list[str]:
        """Returns the names of all parameters recorded so far."""
        unnamed = [name for reference, name in self._unnamed.values() if reference() is not None]
        return [name for _, name in self._modules.parameters()] + unnamed

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Returns the name under which a parameter is recorded; None: not recorded so far."""
        found = self._unnamed.get(id(parameter))
        if found is not None and found[0]() is parameter:
            return found[1]
        return self._modules.parameter_name(parameter)

    def signature(self, tensor: torch.Tensor) -> int:
        """Returns the text id of a tensor's dtype and device."""
        key = (tensor.dtype, tensor.device)
        found = self._signatures.get(key)
        if found is None:
            text = f"\t{str(tensor.dtype).removeprefix('torch.')}\t{tensor.device}"
            found = self._signatures[key] = self._recorder.intern(text)
        return found

    def _known(self, parameters: list[torch.Tensor], ordinal: int) -> list[ParameterInfo]:
        names = [self._modules.parameter_name(p) for p in parameters]
        if None in names:
            self._modules.refresh()
            names = [self._modules.parameter_name(p) for p in parameters]
        known = []
        for position, (parameter, name) in enumerate(zip(parameters, names, strict=True)):
            if name is None:
                name = f"optimizer{ordinal}.parameter{position}"
                self._unnamed[id(parameter)] = (weakref.ref(parameter), name)
            known.append(self._one(parameter, name))
        return known

    def _one(self, parameter: torch.Tensor, name: str) -> ParameterInfo:
        return ParameterInfo(
            weakref.ref(parameter),
            self._recorder.intern(name),
            self.signature(parameter),
            local_part(parameter).numel(),
            parameter.numel(),
            not is_whole(parameter),
        )


def _same(parameters: list[torch.Tensor], known: list[ParameterInfo]) -> bool:
    return len(parameters) == len(known) and all(
        map(is_, parameters, [one.reference() for one in known])
    )


def _records(known: list[ParameterInfo], ordinal: int) -> bytes:
    rows = np.zeros(len(known), RECORD_TYPE)
    rows["kind"], rows["aux"] = Kind.GRADIENT, ordinal
    rows["name"] = [one.name for one in known]
    rows["extra"] = [one.numel for one in known]
    rows["signature"] = [one.signature for one in known]
    return rows.tobytes()


def is_whole(tensor: Any) -> bool:
    """Returns whether each rank of a data-parallel group has the whole tensor, not a shard."""
    placements = getattr(tensor, "placements", ())
    return all(placement.is_replicate() for placement in placements)


def local_part(tensor: Any) -> Any:
    """Returns this rank's shard of a distributed tensor; any other tensor unchanged."""
    return getattr(tensor, "_local_tensor", tensor)
