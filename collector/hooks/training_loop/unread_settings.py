"""Finds settings that reach nothing: attributes that torch does not read, `p.require_grad = False`,
and a group of an optimizer without weight decay, in which there are no parameters or few.

Parameters, modules and optimizers take any attribute. One that is spelt like requires_grad, or set
where it has no effect, changes nothing.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from numbers import Real
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer

from ...format.loop_names import SPARE_GROUP, UNREAD_SETTING
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..stacks import code_line
from ..training.modules import clean_paths

_TRAINABLE = re.compile(
    r"_*(re?q\w{2,6}|needs?)_?grad\w*_*|_*grad\w*_(re?q\w{2,6}|needed)_*", re.IGNORECASE
)
"""Spellings of requires_grad."""

_RATES = ("lr", "learning_rate")
_NO_DECAY = re.compile(r"\bweight_decay[\"']?\s*[:=]\s*0(\.0*)?\b(?!\.?\d)")


def unread_settings(
    root: torch.nn.Module, is_library: Callable[[str], bool]
) -> Iterator[tuple[str, float]]:
    """Yields names of UNREAD_SETTING of a model, and how many parameters they were meant for."""
    found: dict[tuple[str, str, bool], list[torch.Tensor]] = {}
    named: dict[tuple[str, str, bool], str] = {}
    for path, module in clean_paths(root):
        for holder, name, one in _holders(path, module):
            for attribute, value in list(vars(one).items()):
                if type(value) is not bool or not _TRAINABLE.fullmatch(attribute):
                    continue
                key = holder, attribute, value
                meant = [one] if isinstance(one, torch.Tensor) else list(one.parameters())
                ignored = all(parameter.requires_grad is not value for parameter in meant)
                if meant and ignored and not _reads(type(one), attribute):
                    named.setdefault(key, name)
                    found.setdefault(key, []).extend(meant)
    for key, meant in found.items():
        holder, attribute, value = key
        place = _only_line(_assigns(attribute), is_library)
        name = f"{UNREAD_SETTING}{place}/{holder}/{attribute}/{value}/{named[key]}"
        yield name, float(len({id(one) for one in meant}))


def _holders(path: str, module: torch.nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yields kind, name and object of a module and of its own parameters."""
    yield "module", path or type(module).__name__, module
    for name, one in module._parameters.items():
        if one is not None:
            yield "parameter", f"{path}.{name}" if path else name, one


def _reads(kind: type, attribute: str) -> bool:
    """Whether a method of a class asks for an attribute of its own, which then has a meaning."""
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):  # it was made by code that is in no file
        return False
    return bool(re.search(rf"\bself\.{re.escape(attribute)}\b(?!\s*=[^=])", text))


def _assigns(attribute: str) -> re.Pattern[str]:
    return re.compile(rf"\.{re.escape(attribute)}\s*=(?!=)|setattr\(.*[\"']{attribute}[\"']")


def _only_line(sets: re.Pattern[str], is_library: Callable[[str], bool]) -> str:
    """Returns file.py:12 that matches: the only such line in files that run now."""
    frame: FrameType | None = sys._getframe()
    files = {}
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            files[frame.f_code.co_filename] = frame.f_code
        frame = frame.f_back
    places = [
        code_line(code, number)
        for file, code in files.items()
        for number, line in enumerate(linecache.getlines(file), 1)
        if sets.search(line)
    ]
    return places[0] if len(places) == 1 else ""


class UnreadRates:
    """Writes a value named UNREAD_SETTING once where a rate is set as an attribute of an
    optimizer of torch, and its groups have others."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._seen: set[int] = set()

    def stepping(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps."""
        held = vars(optimizer)
        if not any(name in held for name in _RATES) or id(optimizer) in self._seen:
            return
        recorder, kind = self._recorder, type(optimizer)
        if not kind.__module__.startswith("torch.optim.") or not recorder.active:
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        for name in _RATES:
            value = held.get(name)
            if isinstance(value, Real) and float(value) not in rates:
                self._seen.add(id(optimizer))
                place = _only_line(_assigns(name), self._is_library)
                said = f"{place}/optimizer/{name}/{value}"
                recorder.value(f"{UNREAD_SETTING}{said}/{kind.__name__}", rates[0])


class SpareGroups:
    """Writes a value named SPARE_GROUP for an optimizer, as it steps for the first time."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._seen: set[int] = set()

    def stepping(self, optimizer: Optimizer) -> None:
        """Looks at an optimizer that steps."""
        recorder, groups = self._recorder, optimizer.param_groups
        if len(groups) < 2 or id(optimizer) in self._seen or not recorder.active:
            return
        self._seen.add(id(optimizer))
        decays = [group.get("weight_decay") for group in groups]
        if not all(isinstance(one, (int, float)) for one in decays) or 0 not in decays:
            return
        left_out, decayed = (
            [
                one
                for group, decay in zip(groups, decays, strict=True)
                if bool(decay) is side
                for one in group["params"]
            ]
            for side in (False, True)
        )
        alone = all(one.dim() <= 1 for one in left_out)
        if alone and len(left_out) < sum(one.dim() <= 1 for one in decayed):
            place = _only_line(_NO_DECAY, self._is_library)
            name = f"{SPARE_GROUP}{place}/{type(optimizer).__name__}"
            recorder.value(name, float(len(left_out)))


def _hook(context: HookContext) -> None:
    for looks in (UnreadRates, SpareGroups):
        watch = looks(context.recorder, context.stacks.is_library)
        context.patches.before_steps(watch.stepping)


HOOK = Hook("settings that reach nothing", _hook)
