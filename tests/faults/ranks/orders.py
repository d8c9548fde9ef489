"""Programs of two ranks whose calls or samples come in another order than meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from tests.faults.ranks.one_model import STEPS, batch, begin, limited, net, rank_faults, sgd

_Metric = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_METRICS: dict[str, _Metric] = {
    "loss": F.cross_entropy,
    "accuracy": lambda out, y: (out.argmax(1) == y).float().mean(),
    "norm": lambda out, _: out.norm(),
    "top": lambda out, _: out.max(),
}

# numbers that are reduced in different orders ----------------------------------------------------


def _reduced(names: Callable[[int, int], Iterable[str]], model: Any = None) -> None:
    """Trains, and reduces metrics in the order that `names` gives by rank and step."""
    rank = begin()
    model = DDP(net(rank))
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = batch()
        out = model(x)
        optimizer.zero_grad()
        F.cross_entropy(out, y).backward()
        optimizer.step()
        for name in names(rank, step):
            value = _METRICS[name](out.detach(), y)
            dist.all_reduce(value)


def metrics_in_the_order_of_a_set(planted: bool) -> None:
    """Strings hash differently in each process; the twin sorts them."""
    order = ["loss", "accuracy", "norm", "top"]
    hashed = ["norm", "loss", "top", "accuracy"]
    _reduced(lambda rank, _: hashed if rank and planted else order)


def metrics_of_a_logger_first(planted: bool) -> None:
    """The rank that logs begins with what it prints."""

    def names(rank: int, step: int) -> list[str]:
        first = "accuracy" if rank == 0 and planted else "loss"
        return sorted(["loss", "accuracy", "top"], key=lambda name: (name != first, name))

    _reduced(names)


def metrics_added_when_first_seen(planted: bool) -> None:
    """A dictionary of metrics is filled in the order in which a rank first has them; the twin
    reduces some metrics in every other step alone, on both ranks."""

    def names(rank: int, step: int) -> list[str]:
        known = ["top", "loss", "norm"] if rank and planted else ["loss", "norm", "top"]
        return known if planted or step % 2 else known[:2]

    _reduced(names)


# the epoch of a sampler that comes too late ------------------------------------------------------


def _late(planted: bool, loader_of: Callable[[Any, Any], Any], at: int = 0) -> None:
    """Sets the epoch in a step of the loop over the loader; the twin before the loop."""
    model = DDP(net(begin()))
    numbers = torch.Generator().manual_seed(3)
    x = torch.randn(160, 8, generator=numbers)
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader, optimizer = loader_of(data, sampler), sgd(model)
    for epoch in range(4):
        if not planted:
            sampler.set_epoch(epoch)
        for number, (rows, y) in enumerate(loader):
            if planted and number == at:
                sampler.set_epoch(epoch)
            optimizer.zero_grad()
            F.cross_entropy(model(rows), y).backward()
            optimizer.step()


def epoch_set_at_the_first_batch(planted: bool) -> None:
    """The iterator of the epoch is made already."""
    _late(planted, lambda data, sampler: DataLoader(data, 16, sampler=sampler))


def epoch_set_at_the_last_batch(planted: bool) -> None:
    """A callback at the end of an epoch sets the number of this one."""
    _late(planted, lambda data, sampler: DataLoader(data, 16, sampler=sampler), at=4)


def epoch_set_behind_a_batch_sampler(planted: bool) -> None:
    """So with a sampler of batches around the one of the ranks; the twin's loop sets the number of
    the next epoch, where it is still of use."""

    def loader_of(data: Any, sampler: Any) -> Any:
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 16, drop_last=False))

    if planted:
        _late(planted, loader_of, at=1)
        return
    model = DDP(net(begin()))
    data = TensorDataset(*batch(160))
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    optimizer = sgd(model)
    for epoch in range(4):
        for number, (rows, y) in enumerate(loader_of(data, sampler)):
            if number == 4:
                sampler.set_epoch(epoch + 1)
            optimizer.zero_grad()
            F.cross_entropy(model(rows), y).backward()
            optimizer.step()


# steps that a rank leaves out --------------------------------------------------------------------


def _skipping(
    planted: bool, is_bad: Callable[[torch.Tensor, nn.Module], bool], spoilt: int
) -> None:
    """Rank 1 leaves out its step for a spoilt batch; in the twin both ranks do."""
    rank = limited()
    model = net(rank)
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = batch()
        if rank == 1 and step == spoilt:
            x[0, 0] = float("inf")
        loss = F.cross_entropy(model(x), y)
        bad = torch.tensor(float(is_bad(loss, model)))
        if not planted:
            dist.all_reduce(bad)
        if bad > 0:
            continue
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def nan_loss_of_one_rank(planted: bool) -> None:
    """A loss is not a number."""
    _skipping(planted, lambda loss, _: bool(loss.isnan()), 4)


def first_step_of_one_rank(planted: bool) -> None:
    """So in the second step."""
    _skipping(planted, lambda loss, _: not bool(loss.isfinite()), 1)


def spike_of_one_rank(planted: bool) -> None:
    """A loss that is too large is left out."""
    _skipping(planted, lambda loss, _: not float(loss) < 20, 6)


def _summed_up(counted: Callable[[int, int, Any], torch.Tensor]) -> None:
    """Trains, and adds a number of each rank up after every fifth step; the first rank looks at the
    model's output before that."""
    rank = limited()
    model = net(rank)
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if step % 5 == 4:
            with torch.no_grad():
                out = model(x) if rank == 0 else None
            dist.all_reduce(counted(rank, step, out))


def count_of_another_type(planted: bool) -> None:
    """A count is whole on one rank, and a fraction on the other."""

    def counted(rank: int, step: int, out: Any) -> torch.Tensor:
        number: Any = 0.5 * step if out is None else int((out > 0).sum())
        return torch.tensor([number, step], dtype=None if planted else torch.float64)

    _summed_up(counted)


def count_of_more_classes(planted: bool) -> None:
    """A rank counts the classes that it has seen."""

    def counted(rank: int, step: int, out: Any) -> torch.Tensor:
        seen = torch.arange(4 if out is None else 3)
        return torch.bincount(seen, minlength=0 if planted else 4)

    _summed_up(counted)


def scores_in_half_precision(planted: bool) -> None:
    """A rank's scores are as its model makes them, and the other's are zeros."""

    def counted(rank: int, step: int, out: Any) -> torch.Tensor:
        score = torch.zeros(4) if out is None else out.bfloat16().mean(0)
        return score if planted else score.float()

    _summed_up(counted)


def unreadable_batch_of_one_rank(planted: bool) -> None:
    """A batch that is not a number is left out before the model is called."""
    rank = limited()
    model = DDP(net(rank))
    x, targets = batch(4 * STEPS)
    if rank == 1:
        x[4 * 5] = float("nan")
    optimizer = sgd(model)
    for rows, y in DataLoader(TensorDataset(x, targets), batch_size=4):
        bad = rows.isnan().any().float()
        if not planted:
            dist.all_reduce(bad)
        if bad > 0:
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(rows), y).backward()
        optimizer.step()


def _without_a_loader(planted: bool, *, wrapped: bool, bad_step: int) -> None:
    """Samples are made in the loop; of a batch without labels nothing can be learned."""
    rank = limited()
    model = DDP(net(rank)) if wrapped else net(rank)
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = batch()
        if rank == 1 and step == bad_step:
            y = torch.full_like(y, -100)
        labelled = (y != -100).any().float()
        if not planted:
            dist.all_reduce(labelled, dist.ReduceOp.MIN)
        if labelled == 0:
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters() if not wrapped else ():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def batch_without_labels(planted: bool) -> None:
    """One rank leaves out the batch before it calls the model."""
    _without_a_loader(planted, wrapped=True, bad_step=5)


def first_batch_without_labels(planted: bool) -> None:
    """So in the second step."""
    _without_a_loader(planted, wrapped=True, bad_step=1)


def batch_without_labels_summed_by_hand(planted: bool) -> None:
    """And where gradients are summed by hand."""
    _without_a_loader(planted, wrapped=False, bad_step=3)


FAULTS = (
    *rank_faults(
        "a call with other tensors after what one rank alone computes",
        "collective_mismatch",
        "Ranks disagree on the",
        count_of_another_type,
        count_of_more_classes,
        scores_in_half_precision,
    ),
    *rank_faults(
        "numbers that ranks reduce in different orders",
        "wrong_average",
        "different orders",
        metrics_in_the_order_of_a_set,
        metrics_of_a_logger_first,
        metrics_added_when_first_seen,
    ),
    *rank_faults(
        "an epoch that a sampler gets too late",
        "repeated_data",
        "only within the second one",
        epoch_set_at_the_first_batch,
        epoch_set_at_the_last_batch,
        epoch_set_behind_a_batch_sampler,
    ),
    *rank_faults(
        "a step that one rank leaves out",
        "collective_mismatch",
        "skipped an optimizer step",
        nan_loss_of_one_rank,
        first_step_of_one_rank,
        spike_of_one_rank,
        unreadable_batch_of_one_rank,
        batch_without_labels,
        first_batch_without_labels,
        batch_without_labels_summed_by_hand,
    ),
)
