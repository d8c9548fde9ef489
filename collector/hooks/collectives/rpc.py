"""Records name and rank of a worker of torch.distributed.rpc, which needs no process group."""

from __future__ import annotations

import inspect
from typing import Any

import torch.distributed as dist

from ...recorder.recorder import Recorder
from ..base import Hook, Undo
from ..patches import Patches
from .init_process_group import expect, rank_and_world_size

_INIT = "init_rpc"
_LOST = "names and ranks of RPC workers"


def install(recorder: Recorder) -> Undo:
    """Describes the process as the worker that it becomes, before it waits for the others."""
    if not (dist.is_available() and dist.rpc.is_available()):
        return lambda: None
    original: Any = vars(dist.rpc).get(_INIT)
    parameters = inspect.signature(original) if original is not None else None

    def begins(*arguments: Any, **keywords: Any) -> None:
        if parameters is None:
            return
        given = parameters.bind(*arguments, **keywords).arguments
        recorder.describe(worker=str(given["name"]))
        rank, size = rank_and_world_size(given)
        if size > 1 and 0 <= rank < size and not dist.is_initialized():
            expect(recorder, rank, size)

    patches = Patches()
    patches.ends(dist.rpc, _INIT, begins, lost=_LOST)
    return patches.undo


HOOK = Hook("RPC workers", lambda context: install(context.recorder))
