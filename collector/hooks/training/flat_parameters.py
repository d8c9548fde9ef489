"""Finds which parameters an optimizer holds as one flat tensor.

FSDP's FlatParameter and the partitions of DeepSpeed's ZeRO join the shards of many parameters. Each
shard is recorded under its parameter's name, as if the optimizer held it alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

_FLAT_NAME = "_flat_param"


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
