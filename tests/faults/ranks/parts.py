"""Programs of two ranks that each hold a part of one model, or clip gradients as if they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.faults.ranks.one_model import STEPS, Net, batch, begin, net, rank_faults, sgd, train


class _Shared(torch.autograd.Function):
    """Adds up gradients of the parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Added(torch.autograd.Function):
    """Adds up results of the parts."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Parts(nn.Module):
    """A layer that both ranks hold, and two that are split in halves."""

    def __init__(self, rank: int, before: float = 0.0, after: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(4, 4)
        torch.manual_seed(3 + rank)
        self.columns, self.rows = nn.Linear(8, 16), nn.Linear(16, 4, bias=False)
        self.before, self.after = before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.inner(x), self.before)
        x = _Added.apply(self.rows(self.columns(_Shared.apply(x)).relu()))
        out: torch.Tensor = self.outer(F.dropout(x, self.after))
        return out


def fit_parts(model: nn.Module, clip: Callable[[Any], Any] = lambda model: None) -> None:
    """Trains with the same batches on both ranks."""
    optimizer = sgd(model, 0.1)
    numbers = torch.Generator().manual_seed(9)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        clip(model)
        optimizer.step()


def dropout_before_a_split_layer(planted: bool) -> None:
    """What both ranks hold is dropped out by seeds of their own."""
    rank = begin()
    model = Parts(rank, before=0.2)
    torch.manual_seed(100 + rank * planted)
    fit_parts(model)


def dropout_after_a_split_layer(planted: bool) -> None:
    """So is the sum of the parts."""
    rank = begin()
    model = Parts(rank, after=0.1)
    torch.manual_seed(100 + rank * planted)
    fit_parts(model)


def dropout_before_and_after(planted: bool) -> None:
    """And both of them, with a seed that counts the ranks from one."""
    rank = begin()
    model = Parts(rank, before=0.1, after=0.3)
    torch.manual_seed((rank + 1) * 31 if planted else 31)
    fit_parts(model)


class Residual(Parts):
    """The same around a residual, so that the loss reaches both layers that all ranks hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        parts = _Added.apply(self.rows(self.columns(_Shared.apply(x)).relu()))
        out: torch.Tensor = self.outer(parts + x[:, :4])
        return out


def seed_of_a_rank_before_the_model(planted: bool) -> None:
    """The seed of a rank is set before all layers are made, not only before its parts."""
    rank = begin()
    model = Residual(rank)
    torch.manual_seed(7 + rank * planted)
    for layer in (model.inner, model.outer):
        layer.reset_parameters()
    fit_parts(model)


def one_seed_for_all_parts(planted: bool) -> None:
    """Halves of a layer that begin equal stay so: they learn one half; torch cuts the twin's."""
    from torch.distributed import device_mesh
    from torch.distributed.tensor import parallel

    begin()
    model: nn.Module = Residual(0)
    if not planted:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        mesh = device_mesh.init_device_mesh("cpu", (2,))
        plan = {"1": parallel.ColwiseParallel(), "3": parallel.RowwiseParallel()}
        parallel.parallelize_module(model, mesh, plan)
    fit_parts(model)


def first_rank_alone_loads_weights(planted: bool) -> None:
    """The first rank loads what all ranks hold, and nothing broadcasts it; the ranks of the twin
    have heads of their own on one trunk."""
    rank = begin()
    model = Residual(rank)
    if rank == 0:
        for layer in (model.inner, model.outer)[not planted :]:
            layer.reset_parameters()
    fit_parts(model)


# clipping ----------------------------------------------------------------------------------------


def parts_clipped_by_hand(planted: bool) -> None:
    """Each rank scales its part by its own norm, with operators."""
    rank = begin()

    def clip(model: Parts) -> None:
        gradients = [parameter.grad for parameter in model.parameters()]
        square = torch.stack([one.norm() ** 2 for one in gradients if one is not None]).sum()
        if not planted:
            dist.all_reduce(square)
        factor = (0.05 / square.sqrt()).clamp(max=1.0)
        for one in gradients:
            one.mul_(factor)

    fit_parts(Parts(rank), clip)


def flat_shard_clipped(planted: bool) -> None:
    """Each rank owns a half of one flat parameter, and clips the gradient of that."""
    _flat_shard(planted, dist.reduce_scatter_tensor)


def shard_of_a_sum_clipped(planted: bool) -> None:
    """The same, of a gradient that all ranks have the sum of."""

    def reduce(own: torch.Tensor, whole: torch.Tensor) -> None:
        dist.all_reduce(whole)
        own.copy_(whole.chunk(2)[dist.get_rank()])

    _flat_shard(planted, reduce)


def _flat_shard(planted: bool, reduce: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    rank = begin()
    model = net(rank)
    flat = torch.cat([one.detach().flatten() for one in model.parameters()])
    half = (len(flat) + 1) // 2
    shard = nn.Parameter(F.pad(flat, (0, 2 * half - len(flat))).chunk(2)[rank].clone())
    optimizer = torch.optim.AdamW([shard], lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        gradients = [one.grad for one in model.parameters()]
        whole = torch.cat([one.flatten() for one in gradients if one is not None])
        shard.grad = torch.empty(half)
        reduce(shard.grad, F.pad(whole, (0, 2 * half - len(whole))))
        norm = shard.grad.norm()
        if not planted:
            norm = norm**2
            dist.all_reduce(norm)
            norm = norm.sqrt()
        nn.utils.clip_grads_with_norm_([shard], 0.05, norm)
        optimizer.step()
        parts = torch.empty(2 * half)
        dist.all_gather_into_tensor(parts, shard.detach())
        nn.utils.vector_to_parameters(parts[: len(flat)], model.parameters())


def local_shards_clipped(planted: bool) -> None:
    """Parameters sharded by torch are clipped by the norm of what the rank holds."""
    from torch.distributed.fsdp import fully_shard  # a second, which other programs need not take

    rank = begin()
    model: Any = net(rank)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        own = list(model.parameters())
        if planted:
            own = [nn.Parameter(one.to_local().detach()) for one in own]
            for one, whole in zip(own, model.parameters(), strict=True):
                one.grad = whole.grad.to_local()
        nn.utils.clip_grad_norm_(own, 0.05)
        optimizer.step()


def owned_parameters_clipped(planted: bool) -> None:
    """Each rank updates half of the parameters, and hands them out one by one."""
    rank = begin()
    model = net(rank)
    every = list(model.parameters())
    own = every[rank::2]
    optimizer = torch.optim.AdamW(own, lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for one in every:
            dist.all_reduce(one.grad)
        nn.utils.clip_grad_norm_(own if planted else every, 0.05)
        optimizer.step()
        for number, one in enumerate(every):
            dist.broadcast(one.data, number % 2)


# parameters that no shard holds ------------------------------------------------------------------


def _sharded(shard: Callable[[Net, Any], set[nn.Parameter]]) -> None:
    """Trains a model that `shard` gives to fully_shard; what it returns is averaged by hand."""
    from torch.distributed.fsdp import fully_shard

    rank = begin()
    model = net(rank)
    averaged = shard(model, fully_shard)

    def average(step: int) -> None:
        for one in averaged:
            dist.all_reduce(one.data)
            one.data /= 2

    train(model, torch.optim.AdamW(model.parameters(), lr=0.01), each=average)


def layers_sharded_without_the_rest(planted: bool) -> None:
    """Layers are sharded, and the model around them is not."""

    def shard(model: Net, fully_shard: Any) -> set[nn.Parameter]:
        fully_shard(model.middle)
        if not planted:
            fully_shard(model)
        return set()

    _sharded(shard)


def head_put_in_after_sharding(planted: bool) -> None:
    """A head for other classes replaces the one that is sharded."""

    def shard(model: Net, fully_shard: Any) -> set[nn.Parameter]:
        numbers = torch.Generator().manual_seed(3)
        head = nn.Linear(32, 64)
        with torch.no_grad():
            for one in head.parameters():
                one.copy_(torch.randn(one.shape, generator=numbers) * 0.1)
        if planted:
            fully_shard(model)
            model.head = head
        else:
            model.head = head
            fully_shard(model)
        return set()

    _sharded(shard)


def parameters_ignored_by_shards(planted: bool) -> None:
    """Some are ignored, and are trained all the same; the twin averages them by hand."""

    def shard(model: Net, fully_shard: Any) -> set[nn.Parameter]:
        ignored = set(model.head.parameters())
        fully_shard(model, ignored_params=ignored)
        return set() if planted else ignored

    _sharded(shard)


# replicas ----------------------------------------------------------------------------------------


def _average(gradients: list[torch.Tensor]) -> None:
    for one in gradients:
        dist.all_reduce(one)
        one /= dist.get_world_size()


def _average_in_one_call(gradients: list[torch.Tensor]) -> None:
    flat = torch.cat([one.flatten() for one in gradients])
    _average([flat])
    for one, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
        one.copy_(part.view_as(one))


def fit_replicas(
    planted: bool, average: Callable[[list[torch.Tensor]], None], passes: int = 1
) -> None:
    """Averages gradients by hand; a rank clips its own before that, or the average."""
    model: Any = net(begin())
    optimizer = sgd(model, 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
        if planted:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        average([one.grad for one in model.parameters()])
        if not planted:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()


def replicas_clipped_before_the_average(planted: bool) -> None:
    """One call for each gradient."""
    fit_replicas(planted, _average)


def replicas_clipped_before_one_call(planted: bool) -> None:
    """One call for all gradients."""
    fit_replicas(planted, _average_in_one_call)


def replicas_clipped_after_two_passes(planted: bool) -> None:
    """Two passes add up before the call."""
    fit_replicas(planted, _average_in_one_call, passes=2)


FAULTS = (
    *rank_faults(
        "dropout that differs where it must not",
        "rank_divergence",
        "drop out different elements",
        dropout_before_a_split_layer,
        dropout_after_a_split_layer,
        dropout_before_and_after,
    ),
    *rank_faults(
        "parts of a model that begin wrong",
        "rank_divergence",
        "get the same input",
        seed_of_a_rank_before_the_model,
        one_seed_for_all_parts,
        first_rank_alone_loads_weights,
    ),
    *rank_faults(
        "clipping by the norm of a part",
        "rank_divergence",
        "by its own norm",
        parts_clipped_by_hand,
        flat_shard_clipped,
        shard_of_a_sum_clipped,
        local_shards_clipped,
        owned_parameters_clipped,
    ),
    *rank_faults(
        "replicas that clip before they reduce",
        "rank_divergence",
        "Reduce gradients first",
        replicas_clipped_before_the_average,
        replicas_clipped_before_one_call,
        replicas_clipped_after_two_passes,
    ),
    *rank_faults(
        "parameters that no shard holds",
        "rank_divergence",
        "Other parameters are sharded",
        layers_sharded_without_the_rest,
        head_put_in_after_sharding,
        parameters_ignored_by_shards,
    ),
)
