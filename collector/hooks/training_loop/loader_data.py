"""Records which dataset each iteration over a DataLoader goes through, and how many samples two
share: parts of one dataset, or datasets that hold the same rows of a tensor or an array."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from ...format.loader_names import LOADER_DATA, SHARED_SAMPLES
from ...recorder.recorder import Recorder
from ..patches import caller
from ..stacks import program_place

_MAX_DATASETS, _MAX_INDICES, _MAX_ATTRIBUTES = 8, 100_000, 50


class LoaderData:
    """Writes a value named LOADER_DATA for each iteration, and SHARED_SAMPLES for two datasets."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._numbers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._count = 0
        self._parts: dict[int, array[int]] = {}  # indices or addresses of rows, by number

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
        if len(self._parts) >= _MAX_DATASETS:
            return
        is_part = type(dataset) is Subset
        own = _indices(dataset.indices) if is_part else _rows(dataset)
        if own is None:
            return
        for number_of, theirs in self._parts.items():
            other = self._numbers.get(number_of)
            if other is None or is_part != (type(other) is Subset):
                continue
            if not is_part or other.dataset is dataset.dataset:
                sizes = f"{number_of}/{number}/{len(theirs)}/{len(own)}/{int(is_part)}"
                both = float(len({*own}.intersection(theirs)))
                self._recorder.value(f"{SHARED_SAMPLES}{sizes}", both)
        self._parts[number] = own


def _rows(dataset: Any) -> array[int] | None:
    """Returns the addresses of the rows of the widest tensor or array that a dataset holds with a
    row for each sample; None where it holds none, or many rows."""
    held = [dataset, *islice(getattr(dataset, "__dict__", {}).values(), _MAX_ATTRIBUTES)]
    held += dataset.tensors if type(dataset) is TensorDataset else ()
    found = [one for one in map(_first_and_stride, held) if one is not None]
    try:
        count = len(dataset) if found else 0
    except (TypeError, NotImplementedError):  # it is iterated over
        return None
    rows = max((one for one in found if one[2] == count), key=lambda one: one[1], default=None)
    if rows is None or not 0 < count <= _MAX_INDICES:
        return None
    return array("q", range(rows[0], rows[0] + count * rows[1], rows[1]))


def _first_and_stride(held: Any) -> tuple[int, int, int] | None:
    """Returns the address of the first row, the bytes from row to row, and the number of rows; None
    for all but tensors and arrays."""
    if type(held) is torch.Tensor and held.layout == torch.strided and held.dim():
        found = held.data_ptr(), held.stride(0) * held.element_size(), len(held)
    elif (type(held).__module__, type(held).__name__) == ("numpy", "ndarray") and held.ndim:
        found = held.ctypes.data, held.strides[0], len(held)
    else:
        return None
    return found if found[0] and found[1] > 0 else None


def _indices(indices: Any) -> array[int] | None:
    """Returns the different indices of a subset; None where they are many, or no numbers."""
    try:
        if len(indices) > _MAX_INDICES:
            return None
        numbers = indices.tolist() if isinstance(indices, torch.Tensor) else indices
        return array("q", {*map(int, numbers)})
    except (TypeError, ValueError):
        return None
