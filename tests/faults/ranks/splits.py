"""Programs of two ranks whose data sets are split into training and validation, on each rank."""

from __future__ import annotations

import random

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Subset,
    TensorDataset,
    random_split,
)

from tests.faults.ranks.one_model import begin, net, rank_faults, sgd

_ROWS, _KEPT = 160, 128


def _data() -> TensorDataset:
    x = torch.randn(_ROWS, 8, generator=torch.Generator().manual_seed(3))
    return TensorDataset(x, (x.sum(1) > 0).long())


def _train(rank: int, data: Dataset[object], *, dealt_out: bool = True) -> None:
    """Trains for three epochs; the ranks share out the data, or each takes all of its own."""
    model = DDP(net(rank))
    optimizer = sgd(model)
    sampler = DistributedSampler(data) if dealt_out else None
    loader = DataLoader(data, 16, shuffle=sampler is None, sampler=sampler)
    for epoch in range(3):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def split_by_numbers_of_each_rank(planted: bool) -> None:
    """random_split draws from the generator that is seeded by rank."""
    rank = begin()
    torch.manual_seed(100 + rank)
    generator = torch.default_generator if planted else torch.Generator().manual_seed(0)
    data, _ = random_split(_data(), [_KEPT, _ROWS - _KEPT], generator)
    _train(rank, data)


def first_of_a_permutation(planted: bool) -> None:
    """The split is made by hand; each twin has a part of its own, and takes all of it."""
    rank = begin()
    torch.manual_seed(100 + rank)
    _train(rank, Subset(_data(), torch.randperm(_ROWS)[:_KEPT].tolist()), dealt_out=planted)


def some_of_the_training_set(planted: bool) -> None:
    """Few-shot training: a subset of the training set is chosen by Python's own generator."""
    rank = begin()
    random.seed(rank if planted else 5)
    data, _ = random_split(_data(), [_KEPT, _ROWS - _KEPT], torch.Generator().manual_seed(0))
    _train(rank, Subset(data, random.sample(range(_KEPT), 96)))


FAULTS = rank_faults(
    "data sets that each rank splits in its own way",
    "repeated_data",
    "are split differently",
    split_by_numbers_of_each_rank,
    first_of_a_permutation,
    some_of_the_training_set,
)
