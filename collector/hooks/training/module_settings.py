"""Yields settings of modules, such as the rate of dropout, so that runs compare."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ...format.names import SETTINGS

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
