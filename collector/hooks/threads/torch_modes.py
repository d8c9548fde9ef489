"""Reads the modes of torch that hold on the calling thread alone: a new thread has none of them."""

from __future__ import annotations

from typing import Any

import torch

from ...recorder.private_names import optional

NO_GRAD, AUTOCAST, _DEVICE = "no_grad", "autocast", "device"
"""What a mode's name begins with."""

_DEVICE_TYPES = ("cpu", "cuda")

_functions: Any = optional(
    "torch.overrides", "_get_current_function_mode_stack", "default devices that threads miss"
)
_DeviceContext: Any = optional(
    "torch.utils._device", "DeviceContext", "default devices that threads miss"
)


def torch_modes() -> tuple[str, ...]:
    """Returns the modes of the calling thread: `no_grad`, `autocast cpu bfloat16`, `device meta`.

    Runs no operator.
    """
    found = [] if torch.is_grad_enabled() else [NO_GRAD]
    for kind in _DEVICE_TYPES:
        if torch.is_autocast_enabled(kind):
            dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            found.append(f"{AUTOCAST} {kind} {dtype}")
    if _functions is not None and _DeviceContext is not None:
        devices = [one.device for one in _functions() if isinstance(one, _DeviceContext)]
        if devices:
            found.append(f"{_DEVICE} {devices[-1]}")
    return tuple(found)
