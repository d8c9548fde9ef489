"""Records evaluations by batch normalisation that still has the statistics it was built with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...format.loop_names import FRESH_STATISTICS
from ...recorder.recorder import Recorder
from ..training.device_readback import DeviceReadback
from ..training.replication import short_hash

_MOST = 8
"""Evaluations of a model that are looked at."""
_ROWS, _ELEMENTS = 4, 64
"""Of each tensor."""


class FreshStatistics:
    """Writes values named FRESH_STATISTICS, until a model has other statistics."""

    def __init__(
        self,
        recorder: Recorder,
        readback: DeviceReadback,
        is_plain: Callable[[torch.Tensor], bool],
    ) -> None:
        self._recorder = recorder
        self._readback = readback
        self._is_plain = is_plain
        self._looked: WeakKeyDictionary[torch.nn.Module, list[int]] = WeakKeyDictionary()

    def evaluates(self, model: torch.nn.Module, name: str) -> None:
        """Looks at a model that is called in evaluation mode, once in a step."""
        recorder = self._recorder
        steps = self._looked.setdefault(model, [])
        if len(steps) >= _MOST or recorder.step in steps or recorder.thread().busy:
            return
        steps.append(recorder.step)
        with recorder.contain_errors(), recorder.own_torch(), torch.no_grad():
            layer, norm = next(filter(_has_statistics, model.named_modules()), ("", None))
            own = () if norm is None else (norm.running_mean, norm.running_var)
            tensors = [*own, next(model.parameters(), None)]
            if norm is None or not all(one is not None and self._is_plain(one) for one in tensors):
                steps.extend([-1] * _MOST)
                return
            few = [one.detach()[:_ROWS].flatten()[:_ELEMENTS].float() for one in tensors]
            self._readback.enqueue(
                torch.cat(few), partial(self._write, f"{name}/{layer}", steps, len(few[0]))
            )

    def _write(self, name: str, steps: list[int], length: int, few: torch.Tensor) -> None:
        mean, var, weights = few[:length], few[length : 2 * length], few[2 * length :]
        fresh = not mean.any() and bool((var == 1).all())
        value = short_hash(weights.numpy().tobytes()) if fresh else -1.0
        self._recorder.value(f"{FRESH_STATISTICS}{name}", value)
        if not fresh:
            steps.extend([-1] * _MOST)


def _has_statistics(named: tuple[str, torch.nn.Module]) -> bool:
    return isinstance(named[1], _BatchNorm) and named[1].running_mean is not None
