"""Records loops over a DataLoader that return at the end of their first round."""

from __future__ import annotations

import ast
import linecache
from itertools import takewhile
from textwrap import dedent
from types import FrameType
from typing import Any

import torch

from ...format.loop_names import LEFT_LOOP
from ...recorder.recorder import Recorder
from ..stacks import code_line

_MOST, _LINES = 20, 200
"""Loops that are looked at, and lines of each."""
_TRAINS = ("backward", "step")
_SAMPLERS = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)


class LeftLoops:
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
