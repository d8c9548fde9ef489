"""Replaces the backend of torch.compile where the user asks for one, to see single ops."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from ..base import Hook, HookContext
from ..graphs.fx_graphs import FxGraphs
from ..patches import ChangedArguments, hooks_in_place
from .modules import Modules

# The recorder's global module hooks see a compiled module's wrapper as well, and expect it. The
# program did nothing to be warned about.
_HOOKS_WARNING = r"Using `torch\.compile\(module\)` when there are global hooks on modules"


def _hook(context: HookContext) -> None:
    graphs, modules, patches = context.get(FxGraphs), context.get(Modules), context.patches
    backend = context.recorder.options.compile_backend
    if not hooks_in_place():  # then modules are hooked by torch's global hooks
        warnings.filterwarnings("ignore", message=_HOOKS_WARNING, category=UserWarning)
    # Mode and options belong to the backend that the program chose.
    instead = {"backend": backend, "mode": None, "options": None} if backend is not None else {}

    def begins(*args: Any, **given: Any) -> ChangedArguments:
        return ChangedArguments(None, args, given | instead)

    begin = begins if instead else None
    patches.ends(torch, "compile", begin, lambda _, __: graphs.follow(modules))


HOOK = Hook("torch.compile", _hook)
