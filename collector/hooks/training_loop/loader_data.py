"""Records which dataset each iteration over a DataLoader goes through, and how many samples two
parts of a dataset share."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Subset

from ...format.loader_names import LOADER_DATA, SHARED_SAMPLES
from ...recorder.recorder import Recorder
from ..patches import caller
from ..stacks import program_place

_MAX_DATASETS, _MAX_INDICES = 16, 100_000


class LoaderData:
    """Writes a value named LOADER_DATA for each iteration, and SHARED_SAMPLES for two subsets."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._count = 0
        self._parts: dict[int, tuple[weakref.ref[Any], frozenset[int]]] = {}

    def begins(self, iterator: Any) -> None:
        """Looks at an iteration that begins."""
        dataset = getattr(iterator, "_dataset", None)
        number = next((key for key, one in self._numbers.items() if one is dataset), None)
        with self._recorder.contain_errors():
            if number is None:
                number = self._count
                self._numbers[number] = dataset  # fails for a list, which has no weak references
                self._count += 1
                self._shares(number, dataset)
            place = program_place(caller(2), self._is_library)
            self._recorder.value(f"{LOADER_DATA}{place}", float(number))

    def _shares(self, number: int, dataset: Any) -> None:
        if type(dataset) is not Subset or len(self._parts) >= _MAX_DATASETS:
            return
        own = _indices(dataset.indices)
        if own is None:
            return
        for other, (of, theirs) in self._parts.items():
            if of() is dataset.dataset:
                sizes = f"{other}/{number}/{len(theirs)}/{len(own)}"
                self._recorder.value(f"{SHARED_SAMPLES}{sizes}", float(len(own & theirs)))
        self._parts[number] = weakref.ref(dataset.dataset), own


def _indices(indices: Any) -> frozenset[int] | None:
    """Returns the different indices of a subset; None where there are many, or no numbers."""
    if len(indices) > _MAX_INDICES:
        return None
    numbers = indices.tolist() if isinstance(indices, torch.Tensor) else indices
    return frozenset(map(int, numbers))
