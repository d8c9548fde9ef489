"""Looks how much of a loss of pairs [N, N] goes to the pairs of a sample with itself."""

from __future__ import annotations

import torch

_MIN_SAMPLES, _MOST = 4, 4096


def self_share(scores: torch.Tensor | None, targets: torch.Tensor) -> float | None:
    """Returns the mean probability on the diagonal of logarithms of probabilities [N, N]; None if a
    target is there, or if it is not above 1 / N."""
    if scores is None or type(scores) is not torch.Tensor or scores.device.type != "cpu":
        return None
    if targets.dim() != 1:  # of a single sample, or of positions
        return None
    count = len(targets)
    if scores.shape != (count, count) or not _MIN_SAMPLES <= count <= _MOST:
        return None
    if bool((targets == torch.arange(count, device="cpu")).any()):
        return None
    share = float(scores.diagonal().detach().double().exp().mean())
    return share if share * count > 1 else None
