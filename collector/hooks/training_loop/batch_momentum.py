"""Yields batch normalisations whose running statistics are those of the newest batches."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ...format.loop_names import BATCH_MOMENTUM
from ..training.modules import clean_paths

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
