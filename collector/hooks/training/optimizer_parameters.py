"""Keeps the parameters of each optimizer, so that they are named once and not at every step.

FSDP's FlatParameter and the partitions of DeepSpeed's ZeRO join the shards of many parameters. Each
shard is recorded under its parameter's name, as if the optimizer held it alone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim import Optimizer

from ...journal.journal import FIELDS, RecordKind
from ...recorder.recorder import Recorder
from .modules import Modules
from .settings import MAX_OPTIMIZERS

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that have no code of the program."""

MAX_SHARED = 1024
"""Lists of parameters of an optimizer that are kept; bounds them where each step has new ones."""

RECORD_TYPE = np.dtype(list(FIELDS))


_FLAT_NAME = "_flat_param"


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """What records need of a parameter and does not change between steps."""

    name: int  # text
    signature: int  # text of dtype and device
    numel: int  # on this rank
    whole_numel: int  # on all ranks
    sharded: bool


@dataclass(frozen=True, slots=True)
class _Shared:
    """What steps of one optimizer share while its parameters stay the same."""

    held: list[weakref.ref[torch.Tensor]]
    shards: list[list[Shard]]  # of each tensor held, where any is flat
    known: list[ParameterInfo]
    records: bytes


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """The parameters of an optimizer at a step; of a flat one, the shards in it."""

    parameters: list[torch.Tensor]
    known: list[ParameterInfo]  # of each parameter
    records: bytes  # one per parameter's gradient, with the fields that do not change
    sizes: list[int]  # how many of them each of the optimizer's groups has


class OptimizerParameters:
    """Keeps the parameters of all optimizers that have stepped.

    Naming 10,000 parameters takes a tenth of a second: too long for every step.
    """

    def __init__(self, recorder: Recorder, modules: Modules) -> None:
        self._recorder = recorder
        self._modules = modules
        self._by_optimizer: weakref.WeakKeyDictionary[Optimizer, dict[int, _Shared]] = (
            weakref.WeakKeyDictionary()
        )  # and by the id of the first tensor held
        self._unnamed: dict[
            int, tuple[weakref.ref[torch.Tensor], str]
        ] = {}  # parameters outside modules, by id
        self._signatures: dict[tuple[torch.dtype, torch.device], int] = {}

    def of(self, optimizer: Optimizer, ordinal: int) -> ParameterGroup:
        """Returns the optimizer's parameters, group after group."""
        groups = [group["params"] for group in optimizer.param_groups]
        parameters = [p for group in groups for p in group]
        # ZeRO's stage 3 gives its optimizer one group of partitions after another in each step.
        known = self._by_optimizer.setdefault(optimizer, {})
        first = id(parameters[0]) if parameters else 0
        shared = known.get(first)
        if shared is None or not _same(parameters, shared.held):
            if len(known) >= MAX_SHARED:
                known.clear()
            shared = known[first] = self._share(parameters, ordinal)
        sizes = [len(group) for group in groups]
        if shared.shards:
            with self._recorder.own_torch():
                several = [
                    [shard.of(one) for shard in shards] or [one]
                    for one, shards in zip(parameters, shared.shards, strict=True)
                ]
            ends = iter(several)
            sizes = [sum(len(next(ends)) for _ in group) for group in groups]
            parameters = [one for shards in several for one in shards]
        return ParameterGroup(parameters, shared.known, shared.records, sizes)

    def others(self) -> Iterator[tuple[torch.Tensor, ParameterInfo]]:
        """Yields parameters of called models that no optimizer has stepped."""
        self._modules.refresh()
        held = {
            id(one)
            for known in list(self._by_optimizer.values())
            for shared in list(known.values())
            for reference in shared.held
            if (one := reference()) is not None
        }
        for parameter, name in self._modules.parameters():
            # One that an operator made has no gradient, and torch warns of who looks for it.
            if id(parameter) not in held and parameter.is_leaf and not is_in_parts(parameter):
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

    def _share(self, parameters: list[torch.Tensor], ordinal: int) -> _Shared:
        names = [self._modules.parameter_name(p) for p in parameters]
        if None in names:
            self._modules.refresh()
            names = [self._modules.parameter_name(p) for p in parameters]
        models = self._modules.parameters() if None in names else []
        shards = [shards_of(*one, models) for one in zip(parameters, names, strict=True)]
        known = []
        for position, (parameter, name) in enumerate(zip(parameters, names, strict=True)):
            if shards[position]:
                known += [self._shard(parameter, shard) for shard in shards[position]]
                continue
            if name is None:
                name = f"optimizer{min(ordinal, MAX_OPTIMIZERS)}.parameter{position}"
                self._unnamed[id(parameter)] = (weakref.ref(parameter), name)
            known.append(self._one(parameter, name))
        return _Shared(
            [weakref.ref(one) for one in parameters],
            shards if any(shards) else [],
            known,
            _records(known, ordinal),
        )

    def _one(self, parameter: torch.Tensor, name: str) -> ParameterInfo:
        return ParameterInfo(
            self._recorder.intern(name),
            self.signature(parameter),
            local_part(parameter).numel(),
            parameter.numel(),
            not is_whole(parameter),
        )

    def _shard(self, flat: torch.Tensor, shard: Shard) -> ParameterInfo:
        return ParameterInfo(
            self._recorder.intern(shard.name),
            self.signature(flat),
            shard.numel,
            shard.whole_numel,
            sharded=True,
        )


def _same(parameters: list[torch.Tensor], held: list[weakref.ref[torch.Tensor]]) -> bool:
    return len(parameters) == len(held) and all(map(is_, parameters, [one() for one in held]))


def _records(known: list[ParameterInfo], ordinal: int) -> bytes:
    rows = np.zeros(len(known), RECORD_TYPE)
    rows["kind"], rows["aux"] = RecordKind.GRADIENT, ordinal
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


class Shard(NamedTuple):
    """The elements of one parameter in a flat tensor."""

    name: str
    start: int  # in the flat tensor, elements
    numel: int  # on this rank
    whole_numel: int  # on all ranks

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns the shard as a tensor that shares memory with `flat`, as does its gradient."""
        own = flat.detach()[self.start : self.start + self.numel]
        if flat.grad is not None:
            own.grad = flat.grad[self.start : self.start + self.numel]
        return own.requires_grad_(flat.requires_grad)


def shards_of(
    flat: torch.Tensor, name: str | None, parameters: Iterable[tuple[torch.Tensor, str]]
) -> list[Shard]:
    """Returns the shards in a tensor that an optimizer holds; none if it is not a flat one.

    `name`: the tensor's own, if it is a module's. `parameters`: all that models have, with names.
    """
    found = _of_zero(flat, parameters) if name is None else _of_fsdp(flat, name)
    return sorted(found, key=lambda shard: shard.start)


def is_in_parts(parameter: torch.Tensor) -> bool:
    """Returns True if ranks' optimizers hold parts of the parameter, not itself."""
    return hasattr(parameter, "_z3_optimizer") or hasattr(parameter, "_hp_mapping")


def _of_fsdp(flat: Any, name: str) -> Iterator[Shard]:
    infos = getattr(flat, "_shard_param_infos", ()) if name.endswith(_FLAT_NAME) else ()
    prefix = name.removesuffix(_FLAT_NAME)
    for info, inner, shape in zip(
        infos, getattr(flat, "_fqns", ()), getattr(flat, "_shapes", ()), strict=False
    ):
        if info.in_shard:
            yield Shard(prefix + inner, info.offset_in_shard, info.numel_in_shard, math.prod(shape))


def _of_zero(flat: torch.Tensor, parameters: Iterable[tuple[Any, str]]) -> Iterator[Shard]:
    """Yields those of a partition in full precision; parameters know their place in it."""
    for parameter, name in parameters:
        stage_3 = getattr(parameter, "_z3_optimizer", None)
        if stage_3 is not None:
            group, start, numel = stage_3.grad_position[stage_3.get_param_id(parameter)]
            if stage_3.fp32_partitioned_groups_flat[group] is flat:
                yield Shard(name, start, numel, parameter.ds_numel)
            continue
        mapping = getattr(parameter, "_hp_mapping", None)
        part = getattr(mapping, "hp_fragment", None)
        if part is not None and part.untyped_storage()._cdata == flat.untyped_storage()._cdata:
            start = part.storage_offset() - flat.storage_offset()
            yield Shard(name, start, part.numel(), parameter.numel())
