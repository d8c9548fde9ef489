"""Replaces the backend of torch.compile where the user asks for one, to see single ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from ..base import Hook
from ..patches import ChangedArguments, Patches, hooks_in_place

# The recorder's global module hooks see a compiled module's wrapper as well, and expect it. The
# program did nothing to be warned about.
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"


def install(backend: str | None) -> Callable[[], None]:
    """Compiles with `backend`; None: with the program's own."""
    patches = Patches()
    if not hooks_in_place():  # then modules are hooked by torch's global hooks
        warnings.filterwarnings("ignore", message=_HOOKS_WARNING, category=UserWarning)
    if backend is not None:
        # Mode and options belong to the backend that the program chose.
        instead = {"backend": backend, "mode": None, "options": None}
        patches.ends(
            torch, "compile", lambda *args, **given: ChangedArguments(None, args, given | instead)
        )
    return patches.undo


HOOK = Hook("torch.compile", lambda context: install(context.recorder.options.compile_backend))
