"""Records datasets that the program changes while persistent workers have an older copy.

Looks at numbers, texts and flags of the dataset itself and of datasets within it, and at those of
transforms that they read when they are called, and do not set then.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterator
from itertools import islice
from types import CodeType
from typing import Any

import torch

from ...format.loop_names import STALE_DATASET
from ...recorder.recorder import Recorder

_PLAIN = (int, float, str, bool)
_MAX_DEPTH, _MAX_OBJECTS = 3, 32
"""Datasets and transforms within others, and objects of a dataset, that are looked at."""

_WITHIN = ("dataset", "datasets")
"""Attributes of datasets that hold other ones, as Subset and ConcatDataset have them."""


class WorkerCopies:
    """Writes a value named STALE_DATASET as an iteration begins."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._copied: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}

    def begins(self, iterator: Any) -> None:
        """Compares the dataset of an iterator with what it was as its workers started."""
        if not getattr(iterator, "_persistent_workers", False):
            return
        dataset = getattr(iterator, "_dataset", None)
        now = dict(_plain(dataset))
        copied = self._copied.setdefault(iterator, now)
        for name, one in now.items():
            if name in copied and copied[name] != one:
                said = f"{STALE_DATASET}{type(dataset).__name__}/{name}"
                self._counts[said] = self._counts.get(said, 0) + 1
                self._recorder.value(said, float(self._counts[said]))


def _plain(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yields names and values, as `ratio` and `transform.steps[0].ratio`."""
    for path, owner, code in dataset_parts(dataset):
        sets: set[Any] = set()
        if code is not None:
            stores = (one for one in dis.get_instructions(code) if one.opname == "STORE_ATTR")
            sets = {one.argval for one in stores}
        for name, one in attributes_of(owner):
            read = code is None or (name in code.co_names and name not in sets)
            if type(one) in _PLAIN and read:
                yield f"{path}{name}", one


def dataset_parts(dataset: Any) -> Iterator[tuple[str, Any, CodeType | None]]:
    """Yields a dataset, those within it and their transforms: the path to each, as `dataset.` or
    `transform.steps[0].`, the object, and the code of a transform."""
    return islice(_parts(dataset, "", None, 0), _MAX_OBJECTS)


def _parts(
    owner: Any, path: str, code: CodeType | None, depth: int
) -> Iterator[tuple[str, Any, CodeType | None]]:
    yield path, owner, code
    if depth >= _MAX_DEPTH:
        return
    for name, one in attributes_of(owner):
        many = isinstance(one, list | tuple)
        for number, part in enumerate(one[:_MAX_OBJECTS] if many else (one,)):
            call = "forward" if isinstance(part, torch.nn.Module) else "__call__"
            calls = getattr(getattr(type(part), call, None), "__code__", None)
            calls = calls if isinstance(calls, CodeType) and not isinstance(part, type) else None
            if calls is not None or (code is None and name in _WITHIN):
                yield from _parts(
                    part, f"{path}{name}" + f"[{number}]" * many + ".", calls, depth + 1
                )


def attributes_of(owner: Any) -> list[tuple[str, Any]]:
    """Returns names and values of an object's own attributes."""
    return list(getattr(owner, "__dict__", {}).items())
