"""Records datasets that the program changes while persistent workers have an older copy.

Looks at numbers, texts and flags of the dataset itself, and at those of its transforms that they
read when they are called, and do not set then.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterator
from itertools import islice
from types import CodeType
from typing import Any

import torch

from ...format.names import STALE_DATASET
from ...recorder.recorder import Recorder

_PLAIN = (int, float, str, bool)
_MAX_DEPTH, _MAX_OBJECTS = 3, 32
"""Transforms within transforms, and objects of a dataset, that are looked at."""


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
    for name, one in _attributes(dataset):
        if type(one) in _PLAIN:
            yield name, one
    for path, owner, code in islice(_transforms(dataset, "", 1), _MAX_OBJECTS):
        sets = {each.argval for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"}
        for name, one in _attributes(owner):
            if type(one) in _PLAIN and name in code.co_names and name not in sets:
                yield f"{path}.{name}", one


def _transforms(owner: Any, path: str, depth: int) -> Iterator[tuple[str, Any, CodeType]]:
    """Yields the path of each object within `owner` that can be called, the object and its code."""
    for name, one in _attributes(owner):
        many = isinstance(one, list | tuple)
        for number, part in enumerate(one[:_MAX_OBJECTS] if many else (one,)):
            call = "forward" if isinstance(part, torch.nn.Module) else "__call__"
            code = getattr(getattr(type(part), call, None), "__code__", None)
            if isinstance(code, CodeType) and not isinstance(part, type):
                own = f"{path}{name}" + f"[{number}]" * many
                yield own, part, code
                if depth < _MAX_DEPTH:
                    yield from _transforms(part, f"{own}.", depth + 1)


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    return list(getattr(owner, "__dict__", {}).items())
