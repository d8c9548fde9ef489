"""Keeps what the recorder computes with torch from the modes that the program has entered.

A `TorchFunctionMode` of the program, such as `torch.device("meta")` or the default device, would
decide where the recorder's tensors are; a `TorchDispatchMode` would see its operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from .private_names import optional

_LOST = "values, in a program that enters modes of torch"


@cache
def _torch() -> tuple[Any, Any, Any]:
    return (
        optional("torch._C", "DisableTorchFunction", _LOST) or contextlib.nullcontext,
        optional("torch._C", "_len_torch_dispatch_stack", _LOST) or (lambda: 1),
        optional("torch.utils._python_dispatch", "_disable_current_modes", _LOST)
        or contextlib.nullcontext,
    )


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """Runs its body as if the program had entered no mode of torch on this thread."""
    functions, entered, dispatch = _torch()
    with functions():
        if not entered():
            yield
            return
        with dispatch():
            yield
