"""What an optimizer holds: its parameters, named once and not at every step."""

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
class Known:
    """What of a parameter stays the same, as records need it."""

    reference: weakref.ref[torch.Tensor]
    name: int  # text
    signature: int  # text of dtype and device
    numel: int  # on this rank
    whole_numel: int  # on all ranks
    sharded: bool


@dataclass(frozen=True, slots=True)
class _Shared:
    """What steps of one optimizer have in common, for as long as its parameters are the same."""

    known: list[Known]
    records: bytes


@dataclass(frozen=True, slots=True)
class Holding:
    """An optimizer's parameters at a step."""

    parameters: list[torch.Tensor]
    known: list[Known]  # of each parameter
    records: bytes  # of each parameter's gradient, with what does not change


class Held:
    """Knows the parameters of all optimizers that have stepped.

    A model of 10,000 parameters is named in a tenth of a second: too much for every step.
    """

    def __init__(self, recorder: Recorder, modules: Modules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._by_optimizer: weakref.WeakKeyDictionary[Optimizer, _Shared] = (
            weakref.WeakKeyDictionary()
        )
        self._unnamed: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}  # of no module, by id
        self._signatures: dict[tuple[torch.dtype, torch.device], int] = {}

    def of(self, optimizer: Optimizer, ordinal: int) -> Holding:
        """The optimizer's parameters, group after group."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        shared = self._by_optimizer.get(optimizer)
        if shared is None or not _same(parameters, shared.known):
            known = self._known(parameters, ordinal)
            shared = self._by_optimizer[optimizer] = _Shared(known, _records(known, ordinal))
        return Holding(parameters, shared.known, shared.records)

    def others(self) -> Iterator[tuple[torch.Tensor, Known]]:
        """Parameters of the models that were called, which no optimizer that has stepped holds."""
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
        """Names of all parameters that are recorded, so far."""
        unnamed = [name for reference, name in self._unnamed.values() if reference() is not None]
        return [name for _, name in self._modules.parameters()] + unnamed

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name under which the parameter is recorded; None: it is not, so far."""
        found = self._unnamed.get(id(parameter))
        if found is not None and found[0]() is parameter:
            return found[1]
        return self._modules.parameter_name(parameter)

    def signature(self, tensor: torch.Tensor) -> int:
        """Text of a tensor's dtype and device."""
        key = (tensor.dtype, tensor.device)
        found = self._signatures.get(key)
        if found is None:
            text = f"\t{str(tensor.dtype).removeprefix('torch.')}\t{tensor.device}"
            found = self._signatures[key] = self._recorder.intern(text)
        return found

    def _known(self, parameters: list[torch.Tensor], ordinal: int) -> list[Known]:
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

    def _one(self, parameter: torch.Tensor, name: str) -> Known:
        return Known(
            weakref.ref(parameter),
            self._recorder.intern(name),
            self.signature(parameter),
            local_part(parameter).numel(),
            parameter.numel(),
            not is_whole(parameter),
        )


def _same(parameters: list[torch.Tensor], known: list[Known]) -> bool:
    return len(parameters) == len(known) and all(
        map(is_, parameters, [one.reference() for one in known])
    )


def _records(known: list[Known], ordinal: int) -> bytes:
    rows = np.zeros(len(known), RECORD_TYPE)
    rows["kind"], rows["aux"] = Kind.GRADIENT, ordinal
    rows["name"] = [one.name for one in known]
    rows["extra"] = [one.numel for one in known]
    rows["signature"] = [one.signature for one in known]
    return rows.tobytes()


def is_whole(tensor: Any) -> bool:
    """Whether each rank of a data-parallel group has all of it: a shard differs by design."""
    placements = getattr(tensor, "placements", ())
    return all(placement.is_replicate() for placement in placements)


def local_part(tensor: Any) -> Any:
    """This rank's shard of a distributed tensor; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)
