"""Records the rank and the process groups of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import torch.distributed as dist

from ...format.marks import NewGroup
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches, caller
from ..stacks import program_line
from .clocks import Clocks

_DEFAULT = "_update_default_pg"
"""Function that torch calls whenever the default process group changes."""

_RANKS = "_pg_group_ranks"
"""Dictionary in which torch.distributed keeps the ranks of this process's groups."""

_UNDESCRIBED = "undefined"

_MAX_NAMED = 16
"""Ranks of a group that its mark lists."""

_MAX_MARKS = 1000
"""Groups of a process that are marked, so that what ranks make can be compared."""


class _Groups(dict[Any, Mapping[int, int]]):
    """Group -> {global rank: position}; replaces torch's own, and reports each added group."""

    def __init__(self, known: Mapping[Any, Mapping[int, int]], added: Callable[..., None]) -> None:
        super().__init__(known)
        self.added: Callable[..., None] | None = added

    def __setitem__(self, group: Any, ranks: Mapping[int, int]) -> None:
        super().__setitem__(group, ranks)
        if self.added is not None:
            self.added(group, ranks)


def install(
    recorder: Recorder,
    joined: Callable[[Any, int, int], None],
    is_library: Callable[[str], bool],
) -> Callable[[], None]:
    """Keeps rank, world size and groups of the process up to date, and marks each new group.

    Calls `joined(store, rank, world_size)` when the process is in a default group.
    """
    if not dist.is_available():
        return lambda: None
    owner: Any = dist.distributed_c10d
    lost = "process groups, and the rank of a process without a launcher"
    update = optional(owner.__name__, _DEFAULT, lost)
    known = optional(owner.__name__, _RANKS, lost)
    stores = optional(owner.__name__, "_world.pg_map", "how far the clocks of hosts are apart")
    if update is None or known is None:
        return lambda: None

    def entered(group: Any) -> None:
        recorder.describe(rank=group.rank(), world_size=group.size(), role="rank")
        if stores is None:
            return
        _, store = stores[group]
        if isinstance(store, owner.Store):
            joined(store, group.rank(), group.size())

    def updated(group: Any, _: Any) -> None:
        entered(group)

    marked = 0

    def added(group: Any, ranks: Mapping[int, int]) -> None:
        nonlocal marked
        with recorder.contain_errors():
            _describe(recorder, group, ranks)
            marked += 1
            if marked <= _MAX_MARKS and _is_counted(group):
                text = "all" if group is dist.group.WORLD else _ranks_text(ranks)
                recorder.mark(NewGroup(text, program_line(caller(), is_library)).encode())

    groups = _Groups(known, added)
    if dist.is_initialized():
        entered(dist.group.WORLD)
        for group, ranks in groups.items():
            with recorder.contain_errors():
                _describe(recorder, group, ranks)
    patches = Patches()
    patches.ends(owner, _DEFAULT, lambda group: group, updated)
    setattr(owner, _RANKS, groups)

    def uninstall() -> None:
        patches.undo()
        groups.added = None
        if vars(owner)[_RANKS] is groups:
            known.clear()
            known.update(groups)
            setattr(owner, _RANKS, known)

    return uninstall


def _ranks_text(ranks: Mapping[int, int]) -> str:
    text = ", ".join(map(str, sorted(ranks)))
    return text if len(ranks) <= _MAX_NAMED else f"{len(ranks)} ranks {crc32(text.encode()):08x}"


def _is_counted(group: Any) -> bool:
    """Whether torch numbers a group: one that its members alone make is named by a hash."""
    return not isinstance(group, dist.ProcessGroup) or group.group_name.isdecimal()


def _describe(recorder: Recorder, group: Any, ranks: Mapping[int, int]) -> None:
    if not isinstance(group, dist.ProcessGroup):  # this rank is not a member
        return
    description = group.group_desc
    entry = {
        "ranks": sorted(ranks, key=lambda rank: ranks[rank]),
        "description": "" if description == _UNDESCRIBED else description,
    }
    known = recorder.process.get("groups", {})
    recorder.describe(groups={**known, group.group_name: entry})


HOOK = Hook(
    "process groups",
    lambda context: install(
        context.recorder, context.get(Clocks).joined, context.stacks.is_library
    ),
)
