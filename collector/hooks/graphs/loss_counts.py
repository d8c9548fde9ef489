"""Records over how many elements each loss is a mean: ranks, and batches whose gradients are added
up, may have different numbers.

Scales of the loss are followed from its root down to the function of the loss. Each of its tensors
of one number counts, and so does the mean that the function takes itself. A sum of
several losses has no such number, nor has the part that a checkpoint runs backward through.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from ...format.loop_names import LOSS_COUNT
from ...recorder.recorder import Recorder
from ..cuda_graphs import capturing
from ..training.device_readback import DeviceReadback
from .node_facts import saved_tensor, short_name, takes_mean

_MAX_SCALES = 6

_KEEPS_VALUES = ("NegBackward0", "ToCopyBackward0", "CloneBackward0", "SqueezeBackward0")
"""Nodes between scales."""

_MAX_CALLS = 64
"""Losses of one step: a program without an optimizer stays in step 0."""


class LossCounts:
    """Writes a value named LOSS_COUNT for a loss."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.readback = DeviceReadback()
        self._step, self._calls = -1, 0

    def sample(self, loss: torch.Tensor) -> None:
        """Records the number of a loss that goes into backward."""
        recorder, step = self._recorder, self._recorder.step
        if step != self._step:
            self._step, self._calls = step, 0
        self._calls += 1
        if self._calls > _MAX_CALLS or loss.numel() != 1 or capturing():
            return
        with recorder.own_torch(), torch.no_grad():
            self.readback.drain(wait=False)
            factors = _factors(loss.grad_fn)
            if factors is None:
                return
            count: Any = 1.0
            for factor, divides in factors:
                number: Any = factor
                if isinstance(factor, torch.Tensor):
                    on_host = factor.device.type == "cpu"
                    number = factor.item() if on_host else factor.detach().float()
                    if on_host and not number:  # a loss that is switched off, or of no target
                        return
                count = count * number if divides else count / number
            if isinstance(count, torch.Tensor):
                self.readback.enqueue(count, lambda one: self._write(float(one), step))
            else:
                self._write(count, step)

    def _write(self, count: float, step: int) -> None:
        if isfinite(count) and count > 0:
            self._recorder.value(LOSS_COUNT, count, step)


def _factors(node: Any) -> list[tuple[torch.Tensor | float, bool]] | None:
    """Returns numbers by which a loss is divided (True) or multiplied, from its last scale down;
    None where these do not lead to a sum or mean."""
    found: list[tuple[torch.Tensor | float, bool]] = []
    for _ in range(_MAX_SCALES):
        name = short_name(node)
        if name in ("DivBackward0", "MulBackward0"):
            # 2 * loss is loss * 2, but a tensor stays where the program wrote it.
            first = node.next_functions[0][0] is not None
            factor = saved_tensor(node, "_raw_saved_other" if first else "_raw_saved_self")
            # To read a number of a sharded tensor is a collective call.
            if type(factor) is not torch.Tensor or factor.dim() or factor.requires_grad:
                return None
            if factor.is_complex():
                return None
            found.append((factor, name.startswith("Div")))
            node = node.next_functions[0 if first else 1][0]
            continue
        if name in _KEEPS_VALUES:
            node = node.next_functions[0][0]
            continue
        if name == "MeanBackward0":
            found.append((float(node._saved_self_sym_numel), True))
        elif takes_mean(node):
            weight = saved_tensor(node, "_raw_saved_total_weight")
            inputs = saved_tensor(node, "_raw_saved_self")
            if type(weight) is torch.Tensor and weight.numel() == 1:
                found.append((weight, True))
            elif inputs is not None:
                found.append((float(inputs.numel()), True))
            else:
                return None
        elif not name.startswith("SumBackward") and not hasattr(node, "_saved_reduction"):
            return None
        return found
    return None
