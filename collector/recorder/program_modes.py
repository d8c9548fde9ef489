"""Keeps what the recorder computes with torch from the modes that the program has entered.

A `TorchFunctionMode` of the program, such as `torch.device("meta")` or the default device, would
decide where the recorder's tensors are; a `TorchDispatchMode` would see its operators.
"""

from __future__ import annotations

import contextlib
from functools import cache
from types import TracebackType
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


class NoModes:
    """Runs its block as if the program had entered no mode of torch on this thread."""

    __slots__ = ("_dispatch", "_functions")

    def __enter__(self) -> None:
        functions, entered, dispatch = _torch()
        self._dispatch = dispatch() if entered() else None
        self._functions = functions()
        self._functions.__enter__()
        if self._dispatch is not None:
            try:
                self._dispatch.__enter__()
            except BaseException:
                self._functions.__exit__(None, None, None)
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._dispatch is not None:
                self._dispatch.__exit__(kind, error, trace)
        finally:
            self._functions.__exit__(kind, error, trace)
