"""Records which dataset each iteration over a DataLoader goes through, and how many samples two
parts of a dataset share."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Subset

from ...format.loader_names import LOADER_DATA, SHARED_SAMPLES
from ...recorder.recorder import Recorder
from ..patches import caller
from ..stacks import program_place

_MAX_DATASETS, _MAX_INDICES = 8, 100_000


class LoaderData:
    """Writes a value named LOADER_DATA for each iteration, and SHARED_SAMPLES for two subsets."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._count = 0
        self._parts: dict[int, array[int]] = {}  # indices, by number

    def begins(self, iterator: Any) -> None:
        """Looks at an iteration that begins."""
        dataset = getattr(iterator, "_dataset", None)
        number = next((key for key, one in self._numbers.items() if one is dataset), None)
        with self._recorder.contain_errors():
            if number is None:
                try:
                    self._numbers[self._count] = dataset
                except TypeError:  # a list: there are no weak references to it
                    return
                number = self._count
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
        for number_of, theirs in self._parts.items():
            other = self._numbers.get(number_of)
            if other is not None and other.dataset is dataset.dataset:
                sizes = f"{number_of}/{number}/{len(theirs)}/{len(own)}"
                both = float(len({*own}.intersection(theirs)))
                self._recorder.value(f"{SHARED_SAMPLES}{sizes}", both)
        self._parts[number] = own


def _indices(indices: Any) -> array[int] | None:
    """Returns the different indices of a subset; None where they are many, or no numbers."""
    try:
        numbers = indices.tolist() if isinstance(indices, torch.Tensor) else indices
        return None if len(numbers) > _MAX_INDICES else array("q", {*map(int, numbers)})
    except (TypeError, ValueError):
        return None
