"""Records in which order DataLoaders go through their datasets, and batches of None."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...format.loader_names import LOADED_BY, LOADER_ORDER, NO_BATCH
from ...recorder.recorder import Recorder
from ..patches import caller
from ..training.replication import short_hash
from .left_loops import LeftLoops


class LoaderOrders:
    """Writes values named LOADER_ORDER, LOADED_BY and NO_BATCH, and LEFT_LOOP of each iteration."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._loops = LeftLoops(recorder)
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._iterations = 0

    def asks(self, iterator: Any) -> Any:
        """Returns an iterator that asks its sampler for indices for the first time, else None."""
        return iterator if self._recorder.active and iterator not in self._numbers else None

    def chosen(self, iterator: Any, indices: Any) -> None:
        """Records the first indices of an iteration."""
        number = self._numbers[iterator] = self._iterations
        self._iterations += 1
        outer = getattr(iterator, "_index_sampler", None)
        frame = caller()
        while frame is not None and self._is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self._loops.begins(outer, frame)
        sampler = getattr(outer, "sampler", outer)
        if type(sampler) is torch.utils.data.RandomSampler:
            name = f"{LOADER_ORDER}{number}/{len(sampler)}"
            self._recorder.value(name, short_hash(repr(indices).encode()))

    def hands_out(self, iterator: Any, batch: Any, *, sampled: bool) -> None:
        """Records which iteration hands out a batch that is sampled, and a batch of None."""
        if sampled:
            self._recorder.value(LOADED_BY, float(self._numbers.get(iterator, -1)))
        if batch is None and self._recorder.active:
            self._recorder.value(NO_BATCH, 1.0)
