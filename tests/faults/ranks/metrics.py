"""Programs whose ranks evaluate apart, and use numbers of their own, average unequal means or count
samples twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.faults.ranks.one_model import begin, net, rank_faults, sgd, train

_EPOCHS, _SAMPLES = 5, 64


def _epochs(after: Callable[[Any, torch.optim.Optimizer], object]) -> None:
    """Trains with an evaluation after each epoch."""
    model = DDP(net(begin()))
    optimizer = sgd(model)
    for _ in range(_EPOCHS):
        train(model, optimizer, steps=2)
        with torch.no_grad():
            after(model.module.eval(), optimizer)
        model.train()


def _mean_of_ranks(value: torch.Tensor) -> float:
    dist.all_reduce(value)
    return float(value / dist.get_world_size())


# numbers of single ranks --------------------------------------------------------------------------


def _plateaus(metric: Callable[[Any], torch.Tensor], planted: bool, **settings: Any) -> None:
    schedulers = dict[int, ReduceLROnPlateau]()

    def after(model: Any, optimizer: torch.optim.Optimizer) -> None:
        if not schedulers:
            # It is too patient to reduce the rate: the ranks have not parted yet.
            schedulers[0] = ReduceLROnPlateau(optimizer, patience=50, **settings)
        value = metric(model)
        schedulers[0].step(float(value) if planted else _mean_of_ranks(value))

    _epochs(after)


def _loss(model: Any, rows: int = _SAMPLES) -> torch.Tensor:
    x = torch.randn(rows, 8)
    return F.cross_entropy(model(x), (x.sum(1) > 0).long())


def plateau_of_own_losses(planted: bool) -> None:
    """A scheduler gets the loss of a rank's own validation data; the twin's the mean of all."""
    _plateaus(_loss, planted)


def plateau_of_own_accuracies(planted: bool) -> None:
    """So with the share of right answers."""

    def accuracy(model: Any) -> torch.Tensor:
        x = torch.randn(_SAMPLES, 8)
        return (model(x).argmax(1) == (x.sum(1) > 0)).float().mean()

    _plateaus(accuracy, planted, mode="max")


def plateau_of_means_of_batches(planted: bool) -> None:
    """So with the mean of several batches."""
    _plateaus(lambda model: torch.stack([_loss(model) for _ in range(3)]).mean(), planted)


# averages of unequal means ------------------------------------------------------------------------


def _own_part() -> int:
    """Samples of a rank: the validation data is not split evenly."""
    return _SAMPLES // (1 + dist.get_rank())


def means_of_uneven_batches(planted: bool) -> None:
    """Each rank averages its batches, rank 1 half as many; the twin sums what it counts."""

    def after(model: Any, _: object) -> None:
        losses = torch.stack([_loss(model, 16) for _ in range(_own_part() // 16)])
        if planted:
            _mean_of_ranks(losses.mean())
        else:
            total = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
            dist.all_reduce(total)

    _epochs(after)


def loss_of_uneven_parts(planted: bool) -> None:
    """One batch per rank, of another length on each; the twin weighs the mean."""

    def after(model: Any, _: object) -> None:
        own = _own_part()
        loss = _loss(model, own)
        _mean_of_ranks(loss if planted else loss * own)

    _epochs(after)


def accuracy_of_uneven_parts(planted: bool) -> None:
    """The share of right answers; the twin has as many samples on each rank."""

    def after(model: Any, _: object) -> None:
        x = torch.randn(_own_part() if planted else _SAMPLES, 8)
        _mean_of_ranks((model(x).argmax(1) == (x.sum(1) > 0)).double().mean())

    _epochs(after)


# samples that are counted twice ------------------------------------------------------------------


def _evaluated(samples: Any, count: Callable[[Any, Any], torch.Tensor]) -> None:
    """Evaluates data after each epoch, by a sampler of ranks, and sums what was counted."""
    x = torch.randn(33, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x.sum(1) > 0).long())

    def after(model: Any, _: object) -> None:
        total = torch.zeros(2)
        for rows, y in DataLoader(data, 4, sampler=samples(data)):
            total += count(model(rows), y)
        dist.all_reduce(total)

    _epochs(after)


def _right(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.stack([(out.argmax(1) == y).sum(), torch.tensor(len(y))])


def _own_rows(data: Any) -> Any:
    return range(dist.get_rank(), len(data), dist.get_world_size())


def accuracy_over_a_padded_sampler(planted: bool) -> None:
    """Right answers are counted over a sampler that hands out a sample twice."""

    def padded(data: Any) -> Any:
        return DistributedSampler(data, shuffle=False)

    _evaluated(padded if planted else _own_rows, _right)


def loss_over_a_padded_sampler(planted: bool) -> None:
    """So with losses; the twin drops the rest."""

    def count(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([F.cross_entropy(out, y, reduction="sum"), torch.tensor(float(len(y)))])

    _evaluated(lambda data: DistributedSampler(data, drop_last=not planted), count)


def accuracy_over_a_shuffled_sampler(planted: bool) -> None:
    """So with one that shuffles. The twin gathers all answers, and cuts them to the length of the
    data."""
    x = torch.randn(33, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x.sum(1) > 0).long())

    def after(model: Any, _: object) -> None:
        sampler: DistributedSampler[Any] = DistributedSampler(data, shuffle=planted)
        loader = DataLoader(data, 4, sampler=sampler)
        own = torch.cat([(model(rows).argmax(1) == y).float() for rows, y in loader])
        if planted:
            dist.all_reduce(own.sum())
        else:
            parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, own)
            torch.stack(parts, 1).flatten()[: len(data)].mean()

    _epochs(after)


FAULTS = (
    *rank_faults(
        "samples that an evaluation counts twice",
        "wrong_average",
        "counts 1 of 33 samples twice",
        accuracy_over_a_padded_sampler,
        loss_over_a_padded_sampler,
        accuracy_over_a_shuffled_sampler,
    ),
    *rank_faults(
        "plateaus of single ranks",
        "rank_divergence",
        "another number on each rank",
        plateau_of_own_losses,
        plateau_of_own_accuracies,
        plateau_of_means_of_batches,
    ),
    *rank_faults(
        "averages of unequal means",
        "wrong_average",
        "weighs each rank alike",
        means_of_uneven_batches,
        loss_of_uneven_parts,
        accuracy_of_uneven_parts,
    ),
)
