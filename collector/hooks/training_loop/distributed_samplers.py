"""Records how distributed samplers share out a dataset: epoch, seed, and which part of it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DistributedSampler, Subset

from ...format.loader_names import SAMPLED_SUBSET, SAMPLER_PADDING
from ...format.names import SAMPLER_END, SAMPLER_EPOCH, SAMPLER_SEED
from ...recorder.recorder import Recorder
from ..training.replication import short_hash

_MAX_INDICES, _MAX_DEPTH = 512, 8
"""Indices of a subset that are hashed, evenly spaced, and subsets of subsets."""


class DistributedSamplers:
    """Writes values named SAMPLER_* and SAMPLED_SUBSET."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._lengths: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of their datasets

    def begins(self, sampler: Any) -> None:
        """Records what a sampler pads as an iteration begins, and how one shuffles."""
        if isinstance(sampler, DistributedSampler) and not sampler.drop_last:
            self._padding(sampler)
        if not _shuffles(sampler):
            return
        if sampler not in self._numbers:
            self._subset(sampler, len(self._numbers))
        number = self._numbers.setdefault(sampler, len(self._numbers))
        self._recorder.value(f"{SAMPLER_EPOCH}{number}", float(sampler.epoch))
        self._recorder.value(f"{SAMPLER_SEED}{number}", float(sampler.seed))

    def ends(self, sampler: Any) -> None:
        """Records its epoch as an iteration ends."""
        if _shuffles(sampler):
            number = self._numbers.setdefault(sampler, len(self._numbers))
            self._recorder.value(f"{SAMPLER_END}{number}", float(sampler.epoch))

    def _padding(self, sampler: Any) -> None:
        with self._recorder.contain_errors(), self._recorder.own_torch():
            if sampler not in self._lengths:  # once, as this is the program's function
                self._lengths[sampler] = len(sampler.dataset)
            length = self._lengths[sampler]
            if 0 < length < sampler.total_size:
                padding = float(sampler.total_size - length)
                self._recorder.value(f"{SAMPLER_PADDING}{length}", padding)

    def _subset(self, sampler: Any, number: int) -> None:
        ranks = int(self._recorder.process.get("world_size", 1))
        with self._recorder.contain_errors(), self._recorder.own_torch():
            found = _hash(sampler, ranks)
            if found is not None:
                self._recorder.value(f"{SAMPLED_SUBSET}{number}", found)


def _shuffles(sampler: Any) -> bool:
    return isinstance(sampler, DistributedSampler) and bool(sampler.shuffle)


def _hash(sampler: Any, ranks: int) -> float | None:
    """Returns a hash of the indices of a sampler's subset; None where it has none, or does not
    share it out among all ranks."""
    dataset = sampler.dataset
    if not isinstance(dataset, Subset) or not 1 < sampler.num_replicas == ranks:
        return None
    parts = []
    for _ in range(_MAX_DEPTH):
        if not isinstance(dataset, Subset):
            break
        few = _few_of(dataset.indices)
        if few is None:
            return None
        parts.append(few)
        dataset = dataset.dataset
    return short_hash(b"/".join(parts))


def _few_of(indices: Sequence[int]) -> bytes | None:
    """Returns how many indices there are, and some of them; None where they are no numbers."""
    try:
        few: Any = indices[:: max(1, len(indices) // _MAX_INDICES)]
        numbers = few.tolist() if isinstance(few, torch.Tensor) else few
        return array("q", [len(indices), *numbers]).tobytes()
    except (TypeError, OverflowError):
        return None
