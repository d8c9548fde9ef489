"""Programs that reduce gradients by hand: in different orders, of other parts, or in vain."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault
from tests.faults.ranks.one_model import STEPS, batch, begin, net, rank_faults, sgd

# gradients of parts that are mixed ---------------------------------------------------------------


class _Joined(torch.autograd.Function):
    """Joins what the ranks of a group compute, by a sum or one after the other."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, side: int, gathers: bool) -> torch.Tensor:
        ctx.side, ctx.gathers = side, gathers
        if not gathers:
            x = x.clone()
            dist.all_reduce(x, group=group)
            return x
        halves = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(halves, x.contiguous(), group=group)
        return torch.cat(halves, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        own = grads[0].chunk(2, 1)[ctx.side].contiguous() if ctx.gathers else grads[0]
        return own, None, None, None


def _two_by_two(reduce: Any, planted: bool, *, gathers: bool = False) -> None:
    """Four ranks: pairs of them hold the halves of a layer, and both pairs the same ones."""
    rank = begin()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    copies = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    side = rank % 2
    torch.manual_seed(side)
    half = nn.Linear(8, 4 if gathers else 8, bias=False)
    optimizer = sgd(half)
    numbers = torch.Generator().manual_seed(rank // 2)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=numbers)
        joined = _Joined.apply(half(x).tanh(), pairs[rank // 2], side, gathers)
        optimizer.zero_grad()
        (joined - x.flip(1)).square().mean().backward()
        reduce(half.weight, None if planted else copies[side])
        optimizer.step()


def sums_over_all_ranks(planted: bool) -> None:
    """Gradients of halves are averaged over all ranks; the twin takes those with the same half."""

    def reduce(weight: torch.Tensor, group: Any) -> None:
        dist.all_reduce(weight.grad, group=group)
        weight.grad /= dist.get_world_size(group)

    _two_by_two(reduce, planted)


def halves_of_columns(planted: bool) -> None:
    """So with halves whose results are put side by side."""

    def reduce(weight: torch.Tensor, group: Any) -> None:
        weight.grad /= dist.get_world_size(group)
        dist.all_reduce(weight.grad, group=group)

    _two_by_two(reduce, planted, gathers=True)


def means_of_flat_copies(planted: bool) -> None:
    """A flat copy is reduced, and its mean takes the gradient's place."""

    def reduce(weight: torch.Tensor, group: Any) -> None:
        flat = weight.grad.flatten()
        dist.all_reduce(flat, group=group)
        weight.grad = (flat / dist.get_world_size(group)).view_as(weight)

    _two_by_two(reduce, planted)


# gradients that each rank reduces in an order of its own -----------------------------------------


def _experts(order: Any, reduce: Any, *, hooked: bool = False) -> None:
    """Trains layers of one shape; `order` is that in which a rank adds up their results, and
    `reduce` gets them in that order and as they were made."""
    rank = begin()
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(4))
    numbers = torch.Generator().manual_seed(rank + 1)
    optimizer = sgd(layers)
    if hooked:
        for one in layers:
            one.weight.register_post_accumulate_grad_hook(_mean)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=numbers)
        chosen = [layers[place] for place in order(rank)]
        result = x
        for one in chosen:
            result = result + one(result).tanh()
        optimizer.zero_grad()
        (result - x.flip(1)).square().mean().backward()
        reduce(chosen, list(layers))
        optimizer.step()


def _mean(parameter: torch.Tensor) -> None:
    parameter.grad /= dist.get_world_size()
    dist.all_reduce(parameter.grad)


def largest_gradients_first(planted: bool) -> None:
    """Gradients are reduced by their size; the twin's in the order of the layers."""

    def reduce(_: object, layers: list[nn.Linear]) -> None:
        weights = [one.weight for one in layers]
        if planted:
            weights.sort(key=lambda weight: -float(weight.grad.norm()))
        for weight in weights:
            _mean(weight)

    _experts(lambda rank: range(4), reduce)


def hooks_in_the_order_of_backward(planted: bool) -> None:
    """Each rank begins with another expert, and hooks reduce gradients as they come; the twin's
    begin with the first."""
    _experts(
        lambda rank: [(place + rank * planted) % 4 for place in range(4)],
        lambda used, layers: None,
        hooked=True,
    )


def buckets_in_the_order_of_use(planted: bool) -> None:
    """Gradients are reduced as one vector, in the order in which layers were used; the twin's in
    that in which they were made."""

    def reduce(used: list[nn.Linear], layers: list[nn.Linear]) -> None:
        own = [one.weight.grad for one in (used if planted else layers)]
        flat = nn.utils.parameters_to_vector(own) / dist.get_world_size()
        dist.all_reduce(flat)
        for grad, mean in zip(own, flat.view(4, 8, 8), strict=True):
            grad.copy_(mean)

    _experts(lambda rank: range(4) if rank else range(3, -1, -1), reduce)


# reductions in vain ------------------------------------------------------------------------------


def _fit(reduce: Any) -> None:
    model = net(begin())
    optimizer = sgd(model)
    torch.manual_seed(10 + dist.get_rank())
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        reduce([one for one in model.parameters() if one.grad is not None])
        optimizer.step()


def means_of_copies(planted: bool) -> None:
    """What is reduced is the quotient, a tensor of its own; the twin divides in place."""

    def reduce(parameters: list[Any]) -> None:
        for one in parameters:
            if planted:
                dist.all_reduce(one.grad / 2)
            else:
                one.grad /= 2
                dist.all_reduce(one.grad)

    _fit(reduce)


def a_vector_that_is_not_read(planted: bool) -> None:
    """All gradients are reduced as one vector, which the twin writes back."""

    def reduce(parameters: list[Any]) -> None:
        own = [one.grad for one in parameters]
        flat = nn.utils.parameters_to_vector(own)
        dist.all_reduce(flat)
        if not planted:
            nn.utils.vector_to_parameters(flat / 2, own)

    _fit(reduce)


def sums_in_double_precision(planted: bool) -> None:
    """Sums are made in float64, and the twin takes them."""

    def reduce(parameters: list[Any]) -> None:
        exact = [one.grad.double() for one in parameters]
        for one, total in zip(parameters, exact, strict=True):
            dist.all_reduce(total)
            if not planted:
                one.grad.copy_(total / 2)

    _fit(reduce)


FAULTS = (
    *rank_faults(
        "gradients that each rank reduces in an order of its own",
        "rank_divergence",
        "in different orders",
        largest_gradients_first,
        hooks_in_the_order_of_backward,
        buckets_in_the_order_of_use,
    ),
    *(
        Fault(
            "gradients of all parts of a model that are reduced together",
            "ranks",
            ("rank_divergence",),
            one,
            says="hold parts of one model",
            ranks=4,
            slow=True,
        )
        for one in (sums_over_all_ranks, halves_of_columns, means_of_flat_copies)
    ),
    *rank_faults(
        "gradients that are reduced in vain",
        "rank_divergence",
        "rather than a copy",
        means_of_copies,
        a_vector_that_is_not_read,
        sums_in_double_precision,
    ),
)
