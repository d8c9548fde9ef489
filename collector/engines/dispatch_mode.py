"""The mode of torch in which the portable engine sees operators."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..hooks import dispatch_modes
from ..hooks.not_compiled import run_as_it_is

_PLAIN = (torch.Tensor, torch.nn.Parameter)

_NO_DISPATCH = torch.Tensor.__torch_dispatch__


class Dispatcher(Protocol):
    """Runs the operators that a dispatch mode sees."""

    def dispatch(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the operator's result."""


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode of one thread. It has no counter, because autograd's device threads inherit it
    and run it concurrently."""

    supports_higher_order_operators = True

    def __init__(self, engine: Dispatcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._engine = engine

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Returns True; False would make torch.compile skip every frame silently."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns True if torch must keep its compiler away from the handler.

        torch would import the compiler at the first operator for that, which takes seconds. Called
        once, when the class is created.
        """
        return not run_as_it_is(cls.__torch_dispatch__)

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[Any, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for kind in types:
            # A class without a __torch_dispatch__ of its own (UninitializedParameter) is plain.
            if kind not in _PLAIN and kind.__torch_dispatch__ is not _NO_DISPATCH:
                if dispatch_modes.depth():
                    # NotImplemented would pass over them: torch asks the subclasses next, and a
                    # FakeTensor leaves the operator to its mode.
                    return func(*args, **kwargs or {})
                # A subclass (DTensor, ...) decomposes itself, and its parts come here again.
                return NotImplemented
        return self._engine.dispatch(func, args, kwargs or {})
