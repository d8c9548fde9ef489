"""Records collective calls of a group on ranks that are not in it: torch only warns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.distributed as dist

from ...format.marks import OutsideGroup
from ...recorder.private_names import optional
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import program_line

_C10D, _NAME = "torch.distributed.distributed_c10d", "_warn_not_in_group"

_MAX_CALLS = 100
"""Calls of one line that are recorded."""


def _hook(context: HookContext) -> None:
    """Marks each such call with the program's line."""
    lost = "collective calls on ranks outside of the group"
    if not dist.is_available() or optional(_C10D, _NAME, lost) is None:
        return
    calls: Counter[tuple[str, str]] = Counter()

    def begins(name: Any, *_: Any, **__: Any) -> None:
        place = str(name), program_line(caller(), context.stacks.is_library)
        calls[place] += 1
        if calls[place] <= _MAX_CALLS:
            context.recorder.mark(OutsideGroup(*place).encode())

    context.patches.ends(dist.distributed_c10d, _NAME, begins, lost=lost)


HOOK = Hook("groups of collectives", _hook)
