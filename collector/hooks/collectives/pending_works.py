"""Records when the program asks for the end of reductions that it began with async_op=True, and of
sends and receives that it began with isend and irecv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ...format.names import REDUCTION_BEGUN, WORK_ASKED
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches

_ASKS = ("wait", "is_completed", "synchronize", "get_future", "result", "exception")
"""Methods of torch's Work by which a program may learn that it is done."""

_ASYNC_OP = 3  # position of all_reduce's argument


def install(recorder: Recorder) -> Callable[[], None]:
    """Writes REDUCTION_BEGUN for each such call, and WORK_ASKED for the first question after it."""
    patches = Patches()
    if not dist.is_available():
        return patches.undo
    pending = False

    def begins(*args: Any, **kwargs: Any) -> bool:
        return bool(args[_ASYNC_OP] if len(args) > _ASYNC_OP else kwargs.get("async_op"))

    def begun(asynchronous: bool, work: Any) -> None:
        nonlocal pending
        if asynchronous and work is not None and recorder.active:
            pending = True
            recorder.value(REDUCTION_BEGUN, 1.0)

    def asked(_: Any) -> None:
        nonlocal pending
        if pending:
            pending = False
            recorder.value(WORK_ASKED, 1.0)

    patches.ends(dist.distributed_c10d, "all_reduce", begins, begun)
    for name in ("isend", "irecv"):
        patches.ends(dist.distributed_c10d, name, lambda *_, **__: True, begun)
    for name in _ASKS:
        patches.ends(dist.Work, name, asked, self_alone=True)
    return patches.undo


HOOK = Hook(
    "ends of asynchronous reductions", lambda context: install(context.recorder), native=True
)
