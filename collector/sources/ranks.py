"""Which rank this process is, once it joined the others: the environment may not say."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed as dist

from ..recorder import Recorder

_NAME = "_update_default_pg"
"""Called wherever the default process group changes, however the program spelled it."""


def install(recorder: Recorder) -> Callable[[], None]:
    """Keep rank and world size of the process up to date."""
    if not dist.is_available():
        return lambda: None
    owner: Any = dist.distributed_c10d
    if dist.is_initialized():
        _describe(recorder, owner._get_default_group())
    original: Callable[..., Any] | None = getattr(owner, _NAME, None)
    if original is None:
        return lambda: None

    @wraps(original)
    def updated(group: Any) -> Any:
        result = original(group)
        if group is not None:
            with recorder.guarded():
                _describe(recorder, group)
        return result

    setattr(owner, _NAME, updated)
    return lambda: setattr(owner, _NAME, original)


def _describe(recorder: Recorder, group: Any) -> None:
    recorder.describe(rank=group.rank(), world_size=group.size(), role="rank")
