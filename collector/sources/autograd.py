"""Backward phases: every call into the autograd engine, however it was spelled."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.autograd
import torch.autograd.graph

from ..kinds import PhaseKind
from ..recorder import Recorder

# Tensor.backward, autograd.backward and autograd.grad all end here; the name is imported into
# both modules, so programs that imported `backward` early are covered too.
_HOLDERS = (torch.autograd, torch.autograd.graph)
_NAME = "_engine_run_backward"


def install(recorder: Recorder, after: Callable[[], None]) -> Callable[[], None]:
    """Record backward phases; `after` runs at the end of each, on its thread."""
    original: Callable[..., Any] = getattr(torch.autograd.graph, _NAME)

    @wraps(original)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        try:
            depth = recorder.begin_phase("backward", PhaseKind.backward)
        except Exception as error:
            recorder.failed(error)
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            try:
                after()
                recorder.end_phase(depth)
            except Exception as error:
                recorder.failed(error)

    for holder in _HOLDERS:
        setattr(holder, _NAME, run_backward)

    def uninstall() -> None:
        for holder in _HOLDERS:
            setattr(holder, _NAME, original)

    return uninstall
