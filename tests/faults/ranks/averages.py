"""Programs whose averages over ranks are those of other numbers than meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.ranks.one_model import STEPS, batch, begin, net, rank_faults, sgd

# losses that each rank divides by a number of its own --------------------------------------------

_TOKENS, _WIDTH = 24, 16


def _sentences(rank: int, steps: int) -> Any:
    """Yields scores and labels of a step: rank 1 has sentences of a third of the length."""
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(20, _WIDTH), nn.Linear(_WIDTH, 20)))
    torch.manual_seed(10 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(steps):
        tokens = torch.randint(20, (8, _TOKENS))
        labels = tokens.roll(-1, 1)
        lengths = torch.randint(18, _TOKENS, (8, 1)) // (1 + 2 * rank)
        labels[torch.arange(_TOKENS) >= lengths] = -100
        optimizer.zero_grad()
        yield model(tokens).flatten(0, 1), labels.flatten()
        optimizer.step()


def _over_all(count: torch.Tensor) -> torch.Tensor:
    """The number by which a rank divides a sum so that the average is the mean of all tokens."""
    total = count.clone().double()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def sums_by_own_tokens(planted: bool) -> None:
    """A sum is divided by the rank's own tokens; the twin's by those of all ranks."""
    for scores, labels in _sentences(begin(), STEPS):
        loss = F.cross_entropy(scores, labels, reduction="sum")
        tokens = (labels != -100).sum()
        (loss / (tokens if planted else _over_all(tokens))).backward()


def means_of_own_tokens(planted: bool) -> None:
    """The loss function leaves out the padding; the twin weighs its mean."""
    for scores, labels in _sentences(begin(), STEPS):
        loss = F.cross_entropy(scores, labels)
        tokens = (labels != -100).sum()
        (loss if planted else loss * (tokens / _over_all(tokens))).backward()


def masked_means(planted: bool) -> None:
    """Losses of tokens times a mask, by the sum of the mask, and then by a number of passes."""
    for scores, labels in _sentences(begin(), STEPS):
        mask = (labels != -100).float()
        each = F.cross_entropy(scores, labels.clamp(min=0), reduction="none")
        own = (each * mask).sum() / (mask.sum() if planted else _over_all(mask.sum()))
        (own / 2).backward()


# gradients that are averaged again ---------------------------------------------------------------


def _averaged(each: Callable[[Any], None], *, wrapped: bool) -> None:
    model: Any = net(begin())
    if wrapped:
        model = DDP(model)
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        each(model)
        optimizer.step()


def divided_by_the_ranks(planted: bool) -> None:
    """The division of the time before DistributedDataParallel is left; the twin has its sum too."""

    def divide(model: Any) -> None:
        for one in model.parameters():
            if not planted:
                dist.all_reduce(one.grad)
            one.grad /= dist.get_world_size()

    _averaged(divide, wrapped=planted)


def scaled_by_one_over_ranks(planted: bool) -> None:
    """All gradients are scaled in one call; the twin averages again, which changes nothing."""

    def scale(model: Any) -> None:
        grads = [one.grad for one in model.parameters()]
        if not planted:
            for one in grads:
                dist.all_reduce(one)
        torch._foreach_mul_(grads, 1 / dist.get_world_size())

    _averaged(scale, wrapped=True)


def summed_after_backward(planted: bool) -> None:
    """What is averaged is summed over the ranks; the twin sums to divide."""

    def total(model: Any) -> None:
        for one in model.parameters():
            dist.all_reduce(one.grad)
            if not planted:
                one.grad.div_(dist.get_world_size())

    _averaged(total, wrapped=True)


# activations of other ranks ----------------------------------------------------------------------


class _Towers(nn.Module):
    """Two views of a sample, as directions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 16), nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.normalize(self.one(x)), F.normalize(self.other(x.flip(1)))


def _contrasted(gather: Callable[[torch.Tensor], torch.Tensor], *, local: bool = True) -> None:
    """Each view is to be found among the other views of all ranks; `local`: by the rank's own
    views alone."""
    rank = begin()
    torch.manual_seed(0)
    model = DDP(_Towers())
    torch.manual_seed(10 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(STEPS):
        views = model(torch.randn(16, 8))
        every = [gather(one) for one in views]
        own = views if local else every
        targets = torch.arange(len(own[0])) + 16 * rank * local
        optimizer.zero_grad()
        losses = [F.cross_entropy(own[side] @ every[1 - side].T / 0.1, targets) for side in (0, 1)]
        torch.stack(losses).mean().backward()
        optimizer.step()


def _gathered(x: torch.Tensor) -> list[torch.Tensor]:
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x)
    return found


def negatives_of_a_list(planted: bool) -> None:
    """Views are gathered as constants; the twin's function has a backward."""

    def gather(x: torch.Tensor) -> torch.Tensor:
        return torch.cat(_gathered(x) if planted else [*all_gather(x)])

    _contrasted(gather)


def negatives_of_one_tensor(planted: bool) -> None:
    """All views are put into one tensor; the twin detaches them, as a teacher's would be."""

    def gather(x: torch.Tensor) -> torch.Tensor:
        return torch.stack(_gathered(x if planted else x.detach())).flatten(0, 1)

    _contrasted(gather)


def negatives_in_half_precision(planted: bool) -> None:
    """Views are cast after they were gathered; the twin puts its own ones back, and computes the
    loss of all."""

    def gather(x: torch.Tensor) -> torch.Tensor:
        found = _gathered(x)
        if not planted:
            found[dist.get_rank()] = x
        return torch.cat(found).bfloat16().float()

    _contrasted(gather, local=planted)


FAULTS = (
    *rank_faults(
        "losses that each rank divides by a number of its own",
        "wrong_loss",
        "by a number of its own",
        sums_by_own_tokens,
        means_of_own_tokens,
        masked_means,
    ),
    *rank_faults(
        "gradients that are averaged again",
        "wrong_gradient",
        "has averaged them",
        divided_by_the_ranks,
        scaled_by_one_over_ranks,
        summed_after_backward,
    ),
    *rank_faults(
        "activations that are gathered without gradients",
        "wrong_gradient",
        "without gradients",
        negatives_of_a_list,
        negatives_of_one_tensor,
        negatives_in_half_precision,
    ),
)
