"""Programs of two ranks that do not train one model together as they are meant to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

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


def shards_of_unequal_length(planted: bool) -> None:
    """Each rank reads a file of its own, and one is shorter."""
    rank = limited()
    rows = 96 if rank == 1 or not planted else 144
    model = DDP(net(rank))
    data = TensorDataset(*batch(rows))
    optimizer = sgd(model)
    for x, y in DataLoader(data, 16):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def stream_that_ends_early(planted: bool) -> None:
    """A stream is dealt out to the ranks, and its end is not even; a barrier follows."""
    rank = limited()

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for number in range(96 if rank or not planted else 64):
                yield torch.randn(8), number % 4

    model = DDP(net(rank))
    optimizer = sgd(model)
    for x, y in DataLoader(Stream(), 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.barrier()


def metric_after_the_last_batch(planted: bool) -> None:
    """Gradients are reduced by hand; one rank goes on to reduce a metric."""
    rank = limited()
    model = net(rank)
    data = TensorDataset(*batch(48 if rank or not planted else 80))
    optimizer = sgd(model)
    for x, y in DataLoader(data, 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    dist.all_reduce(torch.zeros(2))


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


def sampler_seeded_by_rank(planted: bool) -> None:
    """Everything is seeded by rank, the sampler with it."""
    rank = begin()
    epochs(DDP(net(rank)), seed=rank if planted else 7)


def sampler_set_to_an_epoch_of_each_rank(planted: bool) -> None:
    """The epoch is counted over all ranks."""
    rank = begin()
    epochs(DDP(net(rank)), number=lambda epoch: 2 * epoch + rank * planted)


def sampler_set_to_the_epoch_on_the_first_rank(planted: bool) -> None:
    """What belongs to all ranks stands in the branch of the first."""
    rank = begin()
    epochs(DDP(net(rank)), number=lambda epoch: epoch if rank == 0 or not planted else None)


# random numbers ----------------------------------------------------------------------------------


def dropout_seeded_alike(planted: bool) -> None:
    """One seed for all ranks, set once."""
    rank = begin()
    torch.manual_seed(0)
    model = Net(dropout=0.3)
    torch.manual_seed(0 if planted else rank)
    epochs(DDP(model))


def noise_seeded_by_step(planted: bool) -> None:
    """The seed is set again in each step, to the number of the step."""
    rank = begin()
    model = DDP(net(rank))
    optimizer = sgd(model)
    own = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        torch.manual_seed(step + (0 if planted else 100 * rank))
        x = torch.randn(16, 8, generator=own)
        optimizer.zero_grad()
        model(x + 0.1 * torch.randn(16, 8)).square().mean().backward()
        optimizer.step()


def denoiser_seeded_alike(planted: bool) -> None:
    """A model learns to take noise away; both ranks make the same noise."""
    rank = begin()
    torch.manual_seed(0)
    model = DDP(Net(classes=8))
    torch.manual_seed(1 if planted else rank + 1)
    own, optimizer = torch.Generator().manual_seed(rank), sgd(model)
    for _ in range(STEPS):
        x, noise = torch.randn(16, 8, generator=own), torch.randn(16, 8)
        optimizer.zero_grad()
        F.mse_loss(model(0.5 * x + 0.5 * noise), noise).backward()
        optimizer.step()


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


def fit_parts(model: Parts, clip: Callable[[Any], Any] = lambda model: None) -> None:
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
        dist.reduce_scatter_tensor(shard.grad, F.pad(whole, (0, 2 * half - len(whole))))
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


def _faults(name: str, kind: str, says: str, *programs: Program) -> tuple[Fault, ...]:
    return tuple(
        Fault(name, "ranks", (kind,), one, says=says, ranks=2, slow=place > 0)
        for place, one in enumerate(programs)
    )


FAULTS = (
    *_faults(
        "parameters that the wrapper does not reduce",
        "rank_divergence",
        "DistributedDataParallel",
        embedding_for_a_larger_vocabulary,
        head_for_other_classes,
        layer_set_to_be_ignored,
    ),
    *_faults(
        "settings that differ by rank",
        "rank_divergence",
        " on rank 0",
        plateau_of_the_loss_of_each_rank,
        rate_by_rank,
        decay_on_the_first_rank,
    ),
    *_faults(
        "a rank with fewer batches",
        "collective_mismatch",
        "ran out of data after step",
        stream_that_ends_early,
        shards_of_unequal_length,
        metric_after_the_last_batch,
    ),
    *_faults(
        "random numbers that are the same on all ranks",
        "repeated_data",
        "draw the same random numbers",
        dropout_seeded_alike,
        noise_seeded_by_step,
        denoiser_seeded_alike,
    ),
    *_faults(
        "dropout that differs where it must not",
        "rank_divergence",
        "drop out different elements",
        dropout_before_a_split_layer,
        dropout_after_a_split_layer,
        dropout_before_and_after,
    ),
    *_faults(
        "clipping by the norm of a part",
        "rank_divergence",
        "by its own norm",
        parts_clipped_by_hand,
        flat_shard_clipped,
        local_shards_clipped,
    ),
    *_faults(
        "parameters that no shard holds",
        "rank_divergence",
        "Other parameters are sharded",
        layers_sharded_without_the_rest,
        head_put_in_after_sharding,
        parameters_ignored_by_shards,
    ),
    *_faults(
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
    *_faults(
        "parameters beside the wrapper",
        "rank_divergence",
        "check that it is synchronised",
        temperature_beside_the_wrapper,
        centres_beside_the_wrapper,
        tower_beside_the_wrapper,
    ),
    *_faults(
        "samplers that shuffle differently",
        "repeated_data",
        "shuffle differently",
        sampler_seeded_by_rank,
        sampler_set_to_an_epoch_of_each_rank,
        sampler_set_to_the_epoch_on_the_first_rank,
    ),
)
