"""Records evaluations by batch normalisation that still has the statistics it was built with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ...format.loop_names import FRESH_STATISTICS
from ...recorder.recorder import Recorder
from ..training.device_readback import DeviceReadback
from ..training.model_facts import BATCH_NORM
from ..training.modules import clean_paths
from ..training.replication import short_hash

_MOST = 8
"""Evaluations of a model that are looked at."""
_TENSORS, _ROWS, _ELEMENTS = 3, 4, 64
"""Mean, variance and a parameter; of each so much."""


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
        self._looked: WeakKeyDictionary[nn.Module, list[int]] = WeakKeyDictionary()

    def evaluates(self, model: nn.Module, name: str) -> None:
        """Looks at a model that is called in evaluation mode, once in a step."""
        recorder = self._recorder
        steps = self._looked.setdefault(model, [])
        if len(steps) >= _MOST or recorder.step in steps or recorder.thread().busy:
            return
        steps.append(recorder.step)
        with recorder.contain_errors(), recorder.own_torch(), torch.no_grad():
            layer, norm = next(filter(_has_statistics, clean_paths(model)), ("", None))
            own = () if norm is None else (norm.running_mean, norm.running_var)
            tensors = [one for one in (*own, next(model.parameters(), None)) if one is not None]
            plain = all(map(self._is_plain, tensors)) and len(tensors) == _TENSORS
            if not plain or len({one.device for one in tensors}) > 1:
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


def _has_statistics(named: tuple[str, nn.Module]) -> bool:
    return isinstance(named[1], BATCH_NORM) and named[1].running_mean is not None
