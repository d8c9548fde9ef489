"""Records datasets that change their own samples as they hand them out.

An augmentation in `__getitem__` that writes into the stored tensor adds up from epoch to epoch. One
sample of each dataset is watched, the first that is fetched: what the dataset holds at its index is
compared before and after each fetch of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from ...format.loop_names import CHANGED_SAMPLE
from ...recorder.recorder import Recorder
from ..stacks import code_place
from ..training.batches import MAX_ELEMENTS, few_of, raw_bytes

_MAX_HELD = 8
"""Tensors that a dataset holds at an index."""

_MAX_BYTES = 1 << 26
_NUMBERS = "fiub"
"""Kinds of numpy's dtypes."""

_ARRAYS = (torch.Tensor, np.ndarray, np.memmap)


_Few = tuple[bytes, bool]
"""Some elements, and whether they are all the same number."""


class _Watched:
    """A sample of a dataset."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.changes: dict[str, int] = {}
        self.blank: set[str] = set()  # what held one number before the first change: a buffer


class StoredSamples:
    """Writes a value named CHANGED_SAMPLE from the second fetch that changes a sample on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watched: weakref.WeakKeyDictionary[Any, _Watched] = weakref.WeakKeyDictionary()

    def fetches(self, fetcher: Any, wanted: Any) -> tuple[Any, dict[str, _Few]] | None:
        """Looks at a dataset before a fetch; None: the watched sample is not among those wanted."""
        indices = wanted if isinstance(wanted, list) else [wanted]
        dataset = fetcher.dataset
        while isinstance(dataset, Subset):
            indices = [dataset.indices[one] for one in indices]
            dataset = dataset.dataset
        if isinstance(dataset, torch.Tensor):  # it has no code, and cannot be a key: == compares
            return None
        try:
            watched = self._watched.get(dataset)
            if watched is None:
                if not indices or type(indices[0]) is not int:
                    return None
                watched = self._watched[dataset] = _Watched(indices[0])
        except TypeError:  # neither hashed nor referred to weakly
            return None
        if watched.index not in indices:
            return None
        before = self._held(dataset, watched.index)
        if not watched.changes:
            watched.blank |= {name for name, (_, alike) in before.items() if alike}
        return (dataset, before) if before else None

    def fetched(self, began: tuple[Any, dict[str, _Few]]) -> None:
        """Compares what a dataset holds after a fetch of its watched sample."""
        dataset, before = began
        watched = self._watched[dataset]
        after = self._held(dataset, watched.index)
        for name, held in before.items():
            if after.get(name, held) == held or name in watched.blank:
                continue
            count = watched.changes[name] = watched.changes.get(name, 0) + 1
            if count > 1:
                kind = type(dataset)
                place = code_place(getattr(getattr(kind, "__getitem__", None), "__code__", None))
                said = f"{kind.__name__}/{name}[{watched.index}]/{place}"
                self._recorder.value(f"{CHANGED_SAMPLE}{said}", float(count))

    def _held(self, dataset: Any, index: int) -> dict[str, _Few]:
        """Returns some of each tensor that a dataset, or one within it, holds at an index."""
        found: dict[str, _Few] = {}
        recorder = self._recorder
        if recorder.thread().busy or not recorder.active:
            return found
        with recorder.contain_errors(), recorder.own_torch(), torch.no_grad():
            for name, one in _rows(dataset, index, ""):
                few = _few(one)
                if few is not None and len(found) < _MAX_HELD:
                    found[name] = few
        return found


def _rows(dataset: Any, index: int, path: str) -> Iterator[tuple[str, Any]]:
    """Yields names and tensors or arrays that a dataset holds at an index."""
    for name, one in list(getattr(dataset, "__dict__", {}).items()):
        if type(one) in _ARRAYS:  # no class of the program's, whose methods would run
            if one.ndim > 1 and len(one) > index:
                yield path + name, one[index]
        elif type(one) in (list, tuple, dict):
            held = index in one if isinstance(one, dict) else len(one) > index >= 0
            parts = _parts(one[index]) if held else ()
            yield from ((path + name, part) for part in parts if part.ndim)
        elif isinstance(one, Dataset) and not path:
            yield from _rows(one, index, f"{name}.")


def _parts(row: Any) -> list[Any]:
    """Returns the tensors and arrays of a sample."""
    parts = row.values() if type(row) is dict else row if type(row) in (list, tuple) else (row,)
    return [one for one in parts if type(one) in _ARRAYS]


def _few(one: Any) -> _Few | None:
    """Returns some elements of a tensor or an array; None if they cannot be read, or are one."""
    if not isinstance(one, torch.Tensor):
        if one.dtype.kind not in _NUMBERS or one.nbytes > _MAX_BYTES or one.size < 2:
            return None
        data = one.ravel()[:: -(-one.size // MAX_ELEMENTS)].tobytes()
        return data, data == data[: one.itemsize] * (len(data) // one.itemsize)
    plain = one.device.type == "cpu" and one.layout == torch.strided
    lazy = one.is_quantized or one.is_conj() or one.is_neg()
    if not plain or lazy or not one.dim() or one.numel() < 2:
        return None
    data, size = raw_bytes(few_of(one)), one.element_size()
    return data, data == data[:size] * (len(data) // size)
