"""Records in which order DataLoaders go through their datasets, batches of None, and loops over a
DataLoader that return at the end of their first round.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from itertools import takewhile
from textwrap import dedent
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...format.loader_names import LOADED_BY, LOADER_ORDER, NO_BATCH
from ...format.loop_names import LEFT_LOOP
from ...recorder.recorder import Recorder
from ..patches import caller
from ..stacks import code_line
from ..training.replication import short_hash


class LoaderOrders:
    """Writes values named LOADER_ORDER, LOADED_BY and NO_BATCH, and LEFT_LOOP of each iteration."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._loops = _LeftLoops(recorder)
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


_MOST, _LINES = 20, 200
"""Loops that are looked at, and lines of each."""
_TRAINS = ("backward", "step")
_SAMPLERS = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)


class _LeftLoops:
    """Writes values named LEFT_LOOP."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._returns: dict[tuple[str, int], int | None] = {}

    def begins(self, sampler: Any, frame: FrameType) -> None:
        """Looks at the loop of an iteration that begins, by its sampler of batches."""
        if type(sampler) is not torch.utils.data.BatchSampler:
            return
        if type(sampler.sampler) not in _SAMPLERS:  # the length of another one is the program's
            return
        code, line = frame.f_code, frame.f_lineno
        key = code.co_filename, line
        if key not in self._returns:
            if len(self._returns) >= _MOST:
                return
            self._returns[key] = _return_of(*key)
        left = self._returns[key]
        if left is not None:
            name = f"{LEFT_LOOP}{code_line(code, left)}/{code_line(code, line)}/{len(sampler)}"
            self._recorder.value(name, 1.0)


def _return_of(file: str, line: int) -> int | None:
    """Returns the line of a return that ends the body of the loop that begins at a line, which
    trains; None: rounds of it may follow."""
    lines = linecache.getlines(file)[line - 1 : line + _LINES]
    if not lines or not lines[0].lstrip().startswith("for "):
        return None
    inner = takewhile(lambda text: not text.strip() or _margin(text) > _margin(lines[0]), lines[1:])
    source = dedent("".join([lines[0], *inner]))
    if "\\" in source:  # the parser warns of some escapes, where the program would see it
        return None
    try:
        loop = ast.parse(source).body[0]
    except (SyntaxError, ValueError, RecursionError):
        return None
    last = loop.body[-1] if isinstance(loop, ast.For) else None
    inside = [*ast.walk(loop)]
    goes_on = any(isinstance(one, ast.Continue) for one in inside)
    trains = any(isinstance(one, ast.Attribute) and one.attr in _TRAINS for one in inside)
    left = isinstance(last, ast.Return) and trains and not goes_on
    return line + last.lineno - 1 if left and last is not None else None


def _margin(text: str) -> int:
    return len(text) - len(text.lstrip())
