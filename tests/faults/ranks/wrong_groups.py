"""Programs of ranks that reduce gradients in the wrong group, or clip shards by their own norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from tests.faults.base import Fault
from tests.faults.ranks.one_model import STEPS, batch, begin, rank_faults, sgd

_LIMIT = 0.2

# gradients that are reduced over parts of one model ----------------------------------------------


class _Added(torch.autograd.Function):
    """Adds up results of the parts in a group."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _on_a_grid(layers: Callable[[], nn.Module], across: bool) -> None:
    """Four ranks as two replicas of a model in two parts. `across`: gradients are reduced over the
    parts; else over the replicas."""
    rank = begin()
    part, copy = rank % 2, rank // 2
    replicas = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][part]
    parts = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][copy]
    torch.manual_seed(part)
    model = layers()
    optimizer = sgd(model)
    torch.manual_seed(10 + copy)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(_Added.apply(model(x), parts), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=parts if across else replicas)
            parameter.grad /= 2
        optimizer.step()


def gradients_over_the_parts(planted: bool) -> None:
    """The group of the parts is taken for that of the replicas."""
    _on_a_grid(lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), planted)


def gradients_of_a_single_layer(planted: bool) -> None:
    """So with a model of a single layer."""
    _on_a_grid(lambda: nn.Linear(8, 4, bias=False), planted)


def gradients_over_the_parts_of_norms(planted: bool) -> None:
    """So where some parameters begin alike in all parts."""

    def layers() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    _on_a_grid(layers, planted)


# shards that are clipped by hand -----------------------------------------------------------------


def _sharded(clip: Callable[[nn.Module], object]) -> None:
    rank = begin()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = sgd(model)
    torch.manual_seed(10 + rank)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        clip(model)
        optimizer.step()


def _locals(model: nn.Module) -> list[torch.Tensor]:
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    return [one.to_local() for one in gradients]


def _whole(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), _LIMIT)


def local_shards_scaled(planted: bool) -> None:
    """Each rank scales its shards by their norm."""

    def clip(model: nn.Module) -> None:
        shards = _locals(model)
        norm = torch.stack([one.norm() for one in shards]).norm()
        for one in shards:
            one.mul_((_LIMIT / (norm + 1e-6)).clamp(max=1.0))  # named

    _sharded(clip if planted else _whole)


def local_shards_as_one_vector(planted: bool) -> None:
    """So by one vector of all; the twin adds up the squares over the ranks."""

    def clip(model: nn.Module) -> None:
        shards = _locals(model)
        square = torch.cat([one.flatten() for one in shards]).square().sum()
        if not planted:
            dist.all_reduce(square)
        if square.sqrt() > _LIMIT:
            torch._foreach_mul_(shards, _LIMIT / float(square.sqrt()))

    _sharded(clip)


def local_shards_divided(planted: bool) -> None:
    """So with the norm that Python adds up."""

    def clip(model: nn.Module) -> None:
        norm = sum(float(one.norm()) ** 2 for one in _locals(model)) ** 0.5
        for one in _locals(model):
            one.div_(max(1.0, norm / _LIMIT))

    _sharded(clip if planted else _whole)


FAULTS = (
    *(
        Fault(
            "gradients reduced in the wrong group",
            "ranks",
            ("rank_divergence",),
            one,
            says="wrong group",
            ranks=4,
            slow=one is not gradients_over_the_parts,
        )
        for one in (
            gradients_over_the_parts,
            gradients_of_a_single_layer,
            gradients_over_the_parts_of_norms,
        )
    ),
    *rank_faults(
        "shards clipped by hand",
        "rank_divergence",
        "clip each by its own norm",
        local_shards_scaled,
        local_shards_as_one_vector,
        local_shards_divided,
    ),
)
