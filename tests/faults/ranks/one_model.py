"""Programs of two ranks that do not train one model together as they are meant to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.faults.base import Fault, Program

STEPS = 10
LIMIT = timedelta(seconds=3)
"""A process group gives up after this, so that what hangs ends."""


def begin() -> int:
    """Joins the other rank; returns the rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    dist.barrier()
    return dist.get_rank()


class Net(nn.Module):
    """Two layers and a head, with dropout."""

    def __init__(self, dropout: float = 0.0, classes: int = 4) -> None:
        super().__init__()
        self.body, self.drop = nn.Linear(8, 32), nn.Dropout(dropout)
        self.middle, self.head = nn.Linear(32, 32), nn.Linear(32, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(self.middle(self.body(x).relu()).relu()))
        return out


def net(rank: int, **settings: Any) -> Net:
    """The same model on all ranks, and other random numbers from then on."""
    torch.manual_seed(0)
    model = Net(**settings)
    torch.manual_seed(10 + rank)
    return model


def batch(rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples whose class can be learned."""
    x = torch.randn(rows, 8)
    return x, (x.sum(1) > 0).long()


def train(
    model: Any, optimizer: Any, steps: int = STEPS, each: Callable[[int], Any] = lambda step: None
) -> None:
    """Trains on batches of this rank's own."""
    for step in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        each(step)


def sgd(model: Any, rate: float = 0.01) -> torch.optim.Optimizer:
    """The optimizer of most programs here."""
    return torch.optim.SGD(model.parameters(), lr=rate)


def rank_faults(name: str, kind: str, says: str, *programs: Program) -> tuple[Fault, ...]:
    """Forms of one fault on two ranks; all but the first are slow tests."""
    return tuple(
        Fault(name, "ranks", (kind,), one, says=says, ranks=2, slow=place > 0)
        for place, one in enumerate(programs)
    )


# parameters that no wrapper knows ----------------------------------------------------------------


def head_for_other_classes(planted: bool) -> None:
    """Fine-tuning: the head is replaced, in the wrapped model or before it is wrapped."""
    model = net(begin(), classes=10)
    torch.manual_seed(5)
    head = nn.Linear(32, 4)
    if not planted:
        model.head = head
    wrapped = DDP(model)
    model.head = head
    torch.manual_seed(10 + dist.get_rank())
    try:
        train(wrapped, sgd(wrapped))
    except RuntimeError:
        assert planted


def embedding_for_a_larger_vocabulary(planted: bool) -> None:
    """New tokens: the table of a wrapped model is replaced by a longer one."""
    begin()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 24))
    table = nn.Embedding(24, 16)
    if not planted:
        model[0] = table
    wrapped = DDP(model, find_unused_parameters=planted)
    model[0] = table
    torch.manual_seed(10 + dist.get_rank())
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        tokens = torch.randint(24, (32,))
        F.cross_entropy(wrapped(tokens), tokens.roll(1)).backward()
        optimizer.step()


def layer_set_to_be_ignored(planted: bool) -> None:
    """A layer is in the list of what the wrapper ignores, and is trained all the same."""
    model = net(begin())
    names = ["middle.weight", "middle.bias"]
    DDP._set_params_and_buffers_to_ignore_for_model(model, names)
    model.middle.requires_grad_(planted)
    wrapped = DDP(model)
    train(wrapped, sgd(wrapped))


# settings by rank --------------------------------------------------------------------------------


def rate_by_rank(planted: bool) -> None:
    """The learning rate is scaled by the rank in place of the number of ranks."""
    rank = begin()
    model = DDP(net(rank))
    train(model, sgd(model, 0.01 * (rank + 1 if planted else 2)))


def plateau_of_the_loss_of_each_rank(planted: bool) -> None:
    """A scheduler looks at a loss that no rank shares."""
    rank = begin()
    model = DDP(net(rank))
    optimizer = sgd(model, 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    worse = rank == 0 or not planted
    train(model, optimizer, each=lambda step: scheduler.step(1.0 if worse else 1 / (step + 1)))


def decay_on_the_first_rank(planted: bool) -> None:
    """A flag of the command line reaches one rank alone."""
    rank = begin()
    model = DDP(net(rank))
    decay = 0.1 if rank == 0 or not planted else 0.0
    train(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay))


# data --------------------------------------------------------------------------------------------


def limited() -> int:
    """As `begin`, with a group that gives up soon."""
    rank = begin()
    dist.distributed_c10d._set_pg_timeout(LIMIT, dist.group.WORLD)
    return rank


def epochs(
    model: Any, seed: int = 0, number: Callable[[int], int | None] = lambda epoch: epoch
) -> None:
    """Trains for three epochs over parts of one data set; `number` says which the sampler gets."""
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(160, 8, generator=numbers)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data, seed=seed)
    optimizer = sgd(model)
    for epoch in map(number, range(3)):
        if epoch is not None:
            sampler.set_epoch(epoch)
        for rows, y in DataLoader(data, 16, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(rows), y).backward()
            optimizer.step()


# gradients that are not reduced ------------------------------------------------------------------


def never_wrapped(planted: bool) -> None:
    """The data is dealt out to the ranks, and the model is not wrapped."""
    model: nn.Module = net(begin())
    epochs(model if planted else DDP(model))


def loss_is_reduced(planted: bool) -> None:
    """The loss is reduced in place of the gradients."""
    model = net(begin())
    optimizer = sgd(model, 0.1)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if not planted:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        dist.all_reduce(loss.detach())
        optimizer.step()


def wrapper_is_dropped(planted: bool) -> None:
    """The model inside of the wrapper is trained; an accuracy is reduced in each step."""
    model = DDP(net(begin()))
    called = model.module if planted else model
    train(called, sgd(model), each=lambda step: dist.all_reduce(torch.ones(1)))


def all_passes_without_reduction(planted: bool) -> None:
    """Gradients are accumulated, and the last pass does not reduce them either."""
    model = DDP(net(begin()))
    optimizer = sgd(model, 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for last in (False, True):
            x, y = batch()
            with nullcontext() if last and not planted else model.no_sync():
                F.cross_entropy(model(x), y).backward()
        optimizer.step()


def reduced_in_the_first_pass(planted: bool) -> None:
    """The pass that reduces is the first in place of the last."""
    model = DDP(net(begin()))
    optimizer = sgd(model, 0.1)
    for number in range(4 * STEPS):
        x, y = batch()
        model.require_backward_grad_sync = number % 4 == (0 if planted else 3)
        F.cross_entropy(model(x), y).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def temperature_beside_the_wrapper(planted: bool) -> None:
    """The wrapped model does not hold a scalar that is trained."""
    rank = begin()
    model = DDP(net(rank))
    scale = nn.Parameter(torch.tensor(1.0), requires_grad=planted)
    optimizer = torch.optim.Adam([*model.parameters(), *[scale] * planted], lr=0.01)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x) * scale.exp(), y).backward()
        optimizer.step()


def centres_beside_the_wrapper(planted: bool) -> None:
    """A loss has parameters of its own."""
    rank = begin()
    model = DDP(net(rank))
    centres: Any = nn.Embedding(2, 4)
    nn.init.ones_(centres.weight)
    centres = centres if planted else DDP(centres)
    optimizer = torch.optim.SGD([*model.parameters(), *centres.parameters()], lr=0.05)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        out = model(x)
        (F.cross_entropy(out, y) + F.mse_loss(out, centres(y))).backward()
        optimizer.step()


def tower_beside_the_wrapper(planted: bool) -> None:
    """Of two models that are trained together one is wrapped."""
    rank = begin()
    images: Any = DDP(net(rank))
    torch.manual_seed(3)
    texts: Any = nn.Linear(8, 4)
    texts = texts if planted else DDP(texts)
    torch.manual_seed(20 + rank)
    optimizer = torch.optim.AdamW([*images.parameters(), *texts.parameters()], lr=0.01)
    for _ in range(STEPS):
        x, _ = batch()
        optimizer.zero_grad()
        F.cross_entropy(images(x) @ texts(x).T, torch.arange(16)).backward()
        optimizer.step()


def initialised_without_a_seed(planted: bool) -> None:
    """Gradients are averaged by hand; nothing makes the models equal at the start."""
    rank = begin()
    torch.manual_seed(40 + rank)
    model = Net()
    if not planted:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    optimizer = sgd(model, 0.1)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


FAULTS = (
    *rank_faults(
        "parameters that the wrapper does not reduce",
        "rank_divergence",
        "DistributedDataParallel",
        embedding_for_a_larger_vocabulary,
        head_for_other_classes,
        layer_set_to_be_ignored,
    ),
    *rank_faults(
        "settings that differ by rank",
        "rank_divergence",
        " on rank 0",
        plateau_of_the_loss_of_each_rank,
        rate_by_rank,
        decay_on_the_first_rank,
    ),
    *rank_faults(
        "ranks that train apart",
        "rank_divergence",
        "",
        never_wrapped,
        loss_is_reduced,
        wrapper_is_dropped,
        all_passes_without_reduction,
        reduced_in_the_first_pass,
        initialised_without_a_seed,
    ),
    *rank_faults(
        "parameters beside the wrapper",
        "rank_divergence",
        "check that it is synchronised",
        temperature_beside_the_wrapper,
        centres_beside_the_wrapper,
        tower_beside_the_wrapper,
    ),
)
