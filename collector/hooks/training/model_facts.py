"""Yields what can be seen of a model before it trains.

Containers that list one module several times (`nn.ModuleList([block] * 6)`), settings of modules,
such as the rate of dropout, so that runs compare, batch normalisations whose running statistics are
those of the newest batches, and weights that begin as one row, or as one number: all units of such
a layer are alike.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

from ...format.loop_names import BATCH_MOMENTUM, EQUAL_ROWS
from ...format.names import LISTED_MODULE, SETTINGS
from ..stacks import code_line
from .modules import Modules, clean_paths, own_class, unwrap
from .norms import is_freed

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_MAX_LISTED = 20
"""Modules of one model."""


def listed_modules(root: torch.nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    """Yields names of LISTED_MODULE, and how many times the module is listed."""
    yield from islice(_listed(root, modules), _MAX_LISTED)


def _listed(root: torch.nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    known = dict(clean_paths(root))
    for path, container in known.items():
        if not isinstance(container, _CONTAINERS):
            continue
        entries = [one for one in container._modules.values() if one is not None]
        for one, times in Counter(entries).items():
            parameter = next(one.parameters(), None) if times > 1 else None
            name = None if parameter is None else modules.parameter_name(parameter)
            if name is not None:
                owner, _, attribute = path.rpartition(".")
                place = _assigned(known.get(owner), attribute)
                shown = path or own_class(container).__name__
                kind = own_class(unwrap(one)).__name__
                yield f"{LISTED_MODULE}{place}/{shown}/{kind}/{name}", float(times)


def _assigned(owner: torch.nn.Module | None, attribute: str) -> str:
    """Returns file.py:12 where the owner's __init__ sets an attribute; empty: not known."""
    made = None if owner is None else getattr(own_class(owner), "__init__", None)
    code = getattr(made, "__code__", None)
    if code is None or not attribute:
        return ""
    numbers = [line for *_, line in code.co_lines() if line is not None]
    for line in range(code.co_firstlineno, max(numbers, default=0) + 1):
        if linecache.getline(code.co_filename, line).lstrip().startswith(f"self.{attribute} "):
            return code_line(code, line)
    return ""


_MAX_SETTINGS = 1000
"""Of all models of a process: some programs make one in each step."""

_COUNTS = ("ignore_index",)
"""Settings that are whole numbers. Others are sizes."""


class ModuleSettings:
    """Lists what the classes of torch's modules declare as constants."""

    def __init__(self) -> None:
        self._left = _MAX_SETTINGS

    def of(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Yields names and values for the modules of a model."""
        for path, module in model.named_modules():
            if self._left <= 0:
                return
            if not type(module).__module__.startswith("torch.nn.modules."):
                continue
            for name in getattr(type(module), "__constants__", ()):
                value = vars(module).get(name)
                if type(value) in (bool, float) or (name in _COUNTS and type(value) is int):
                    yield f"{SETTINGS}{path or type(module).__name__}.{name}", float(value)
                    self._left -= 1


BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Classes with running statistics."""

_MOST = 0.9
"""From here on momentum is written as other frameworks define it, as the weight of the past."""


def batch_momenta(root: nn.Module) -> Iterator[tuple[str, float]]:
    """Yields names of BATCH_MOMENTUM of a model that trains, and the momenta."""
    for path, module in clean_paths(root):
        if isinstance(module, BATCH_NORM) and module.training and module.track_running_stats:
            momentum = module.momentum
            if momentum is not None and _MOST <= momentum < 1:
                yield f"{BATCH_MOMENTUM}{path}/{type(module).__name__}", momentum


_MIN_ROWS = 8
"""Of a weight that begins as one row; of fewer, all numbers are the same."""
_MAX_WEIGHTS = 20


def equal_rows(root: nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    """Yields names of EQUAL_ROWS of a model's weights, and their numbers of rows."""
    for weight in islice(filter(_are_equal, root.parameters()), _MAX_WEIGHTS):
        name = modules.parameter_name(weight)
        if name is not None:
            yield f"{EQUAL_ROWS}{name}", float(len(weight))


def _are_equal(weight: torch.Tensor) -> bool:
    """Whether a trained weight in host memory has only rows that are one row, and not zero."""
    if type(weight) is not nn.Parameter or not weight.requires_grad or weight.dim() < 2:
        return False
    if weight.device.type != "cpu" or weight.layout != torch.strided or not weight.numel():
        return False
    if is_freed(weight):
        return False
    rows = weight.detach()
    if len(rows) < _MIN_ROWS:
        rows = rows.reshape(-1, 1)
    # Of most weights the first two are all that is read.
    same = bool(rows[0].any()) and torch.equal(rows[0], rows[-1])
    return same and torch.equal(rows, rows[:1].expand_as(rows))
