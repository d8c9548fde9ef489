"""torch.compile: another backend where the user asks for one, to see single ops."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from ..base import Hook
from ..patches import Changed, Patches, in_place

# The recorder's module hooks are global, and do see a compiled module's wrapper once more; they
# expect it. The program did nothing that it would have to be warned of.
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"


def install(backend: str | None) -> Callable[[], None]:
    """Compile with `backend` whatever the program asks for; with None, as the program does."""
    patches = Patches()
    if not in_place():  # else modules are not hooked by torch's own means
        warnings.filterwarnings("ignore", message=_HOOKS_WARNING, category=UserWarning)
    if backend is not None:
        # Mode and options belong to the backend that the program had chosen.
        instead = {"backend": backend, "mode": None, "options": None}
        patches.ends(torch, "compile", lambda *args, **given: Changed(None, args, given | instead))
    return patches.undo


HOOK = Hook("torch.compile", lambda context: install(context.recorder.options.compile_backend))
