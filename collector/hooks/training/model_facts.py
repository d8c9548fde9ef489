"""Yields what can be seen of a model before it trains.

Containers that list one module several times (`nn.ModuleList([block] * 6)`), settings of modules,
such as the rate of dropout, so that runs compare, batch normalisations whose running statistics are
those of the newest batches, weights that begin as one row, or as one number: all units of such a
layer are alike, layers that do nothing as training begins in evaluation mode, and tensors that look
like parameters.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

from ...format.loop_names import BATCH_MOMENTUM, EQUAL_ROWS, PLAIN_TENSOR, RESTING_LAYER
from ...format.names import LISTED_MODULE, SETTINGS
from ..stacks import code_line
from .modules import Modules, clean_paths, own_class, unwrap
from .norms import is_freed

_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
_MAX_LISTED = 20
"""Modules of one model."""


def model_facts(root: torch.nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    """Yields names and values of series about a model that is called with gradients."""
    yield from _listed_modules(root, modules)
    yield from _batch_momenta(root)
    yield from _equal_rows(root, modules)
    yield from _resting_layers(root, modules)
    yield from islice(_plain_tensors(root), _MAX_LISTED)


def _listed_modules(root: torch.nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
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


DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
"""Classes with running statistics."""

_MOST = 0.9
"""From here on momentum is written as other frameworks define it, as the weight of the past."""


def _batch_momenta(root: nn.Module) -> Iterator[tuple[str, float]]:
    """Yields names of BATCH_MOMENTUM of a model that trains, and the momenta."""
    for path, module in clean_paths(root):
        if isinstance(module, BATCH_NORM) and module.training and module.track_running_stats:
            momentum = module.momentum
            if momentum is not None and _MOST <= momentum < 1:
                yield f"{BATCH_MOMENTUM}{path}/{type(module).__name__}", momentum


def _resting_layers(root: nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
    """Yields RESTING_LAYER of the first layer that evaluation mode turns off, in a model that is in
    it as a whole and requires all gradients: one that trains frozen layers may be right to be, as
    may one with a train() of its own."""
    model = unwrap(root)
    trains = all(one.requires_grad for one in model.parameters())
    if not trains or any(one.training or _has_own_train(one) for one in model.modules()):
        return
    for path, module in clean_paths(root):
        rate = module.p if isinstance(module, DROPOUTS) else float(_is_fresh(module))
        if rate > 0:
            name = f"{modules.model_name(root)}/{path}/{own_class(module).__name__}"
            yield f"{RESTING_LAYER}{name}", rate
            return


def _plain_tensors(root: nn.Module) -> Iterator[tuple[str, float]]:
    """Yields PLAIN_TENSOR of attributes that look like parameters of a model, and are none."""
    for path, module in clean_paths(root):
        for name, value in vars(module).items():
            # torch raises where a view is asked for its node whose base has changed (FSDP).
            plain = type(value) is torch.Tensor and not value._is_view()
            if plain and value.requires_grad and value.is_leaf:
                place = _assigned(module, name)
                yield f"{PLAIN_TENSOR}{place}/{path}{'.' * bool(path)}{name}", float(value.numel())


def unsettled(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Returns path and class of the first layer whose training mode changes what a model returns,
    with the model's first parameter; nothing without both."""
    for path, module in clean_paths(model):
        drops = isinstance(module, DROPOUTS) and module.p > 0
        if module.training and (drops or isinstance(module, BATCH_NORM)):
            first = next(model.parameters(), None)
            return [] if first is None else [(f"{path}/{own_class(module).__name__}", first)]
    return []


def _has_own_train(module: nn.Module) -> bool:
    return "train" in vars(module) or type(module).train is not nn.Module.train


def _is_fresh(module: nn.Module) -> bool:
    """Whether batch normalisation has seen no batch yet, and was given no mean: converted weights
    come without a count of batches."""
    if not isinstance(module, BATCH_NORM):
        return False
    for one in (module.num_batches_tracked, module.running_mean):
        if type(one) is not torch.Tensor or one.device.type != "cpu" or is_freed(one) or one.any():
            return False
    return True


_MIN_ROWS = 8
"""Of a weight that begins as one row; of fewer, all numbers are the same."""
_MAX_WEIGHTS = 20


def _equal_rows(root: nn.Module, modules: Modules) -> Iterator[tuple[str, float]]:
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
