"""Records how a rank joins the others: it may wait for long, or fail, before any collective.

The journal holds `init_process_group` as an open call of the group `RENDEZVOUS` while it runs, and
permanently if it fails. A successful one leaves no record: collectives follow it.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from ...format.file_names import JOURNAL_FOLDER
from ...format.names import JOIN, RENDEZVOUS
from ...journal import clock
from ...journal.journal import PROCESS_FILE, RecordKind
from ...recorder.recorder import Recorder
from ..base import Hook
from ..patches import Patches
from ..stacks import Stacks

_ALSO = ("torch.distributed", "torch.distributed.device_mesh")
"""Other modules that hold the function."""


def install(recorder: Recorder, stacks: Stacks) -> Callable[[], None]:
    """Keeps a rank's journal from the start, and records the call by which it joins the others."""
    if not dist.is_available():
        return lambda: None
    process = recorder.process
    if process["role"] == "rank" and process["world_size"] > 1 and _is_started_as_rank(recorder):
        expect(recorder, process["rank"], process["world_size"])
    original: Any = vars(dist.distributed_c10d).get(JOIN)
    if original is None:
        return lambda: None
    join, parameters = _Join(recorder, stacks), inspect.signature(original)

    def begins(*arguments: Any, **keywords: Any) -> tuple[int, ...] | None:
        given = parameters.bind(*arguments, **keywords).arguments
        rank, size = rank_and_world_size(given)
        if size < 2 or not 0 <= rank < size:
            return None
        expect(recorder, rank, size)
        return join.begin(size)

    def fails(call: tuple[int, ...], _: BaseException) -> None:
        join.end()
        join.failed(call)

    patches = Patches()
    patches.ends(dist.distributed_c10d, JOIN, begins, lambda _, __: join.end(), fails, also=_ALSO)
    return patches.undo


class _Join:
    """Records calls that join the other ranks: open while they run, kept if they fail."""

    def __init__(self, recorder: Recorder, stacks: Stacks) -> None:
        self._recorder, self._stacks = recorder, stacks
        self._failures = 0

    def begin(self, size: int) -> tuple[int, ...]:
        """Opens a call; returns the fields that `failed` needs."""
        recorder = self._recorder
        state = recorder.thread()
        fields = (
            recorder.intern(JOIN),
            clock.now(),
            self._failures,
            recorder.intern("\t\tcpu"),
            self._stacks.capture(),
            recorder.intern(f"{RENDEZVOUS}\t{size}\t\t\t"),
        )
        name, start, sequence, signature, stack, group = fields
        state.journal.push_open_record(
            state.open,
            int(RecordKind.COLLECTIVE),
            0,
            0,
            name,
            start,
            0,
            sequence,
            recorder.step,
            state.module,
            signature,
            stack,
            state.phase,
            group,
            0,
        )
        state.open += 1
        return fields

    def end(self) -> None:
        """Closes the call."""
        state = self._recorder.thread()
        state.open -= 1
        state.journal.pop_open(state.open)

    def failed(self, call: tuple[int, ...]) -> None:
        """Writes a record of a failed call; another attempt may follow."""
        self._failures += 1
        name, start, sequence, signature, stack, group = call
        recorder = self._recorder
        recorder.put(
            recorder.thread(),
            RecordKind.COLLECTIVE,
            name=name,
            start=start,
            end=clock.now(),
            sequence=sequence,
            signature=signature,
            stack=stack,
            aux=group,
        )


def expect(recorder: Recorder, rank: int, world_size: int) -> None:
    """Marks a process that others wait for: its journal is kept even if nothing is recorded."""
    recorder.describe(rank=rank, world_size=world_size, role="rank", expected=True)
    recorder.thread()


def rank_and_world_size(given: Mapping[str, Any]) -> tuple[int, int]:
    """Returns rank and world size by a call's arguments, else by the environment; -1: not known."""
    rank, size = (_number(given.get(name, -1), name) for name in ("rank", "world_size"))
    return rank, size


def _number(given: Any, name: str) -> int:
    if isinstance(given, int) and given >= 0:
        return given
    try:
        return int(os.environ[name.upper()])
    except (KeyError, ValueError):
        return -1


def _is_started_as_rank(recorder: Recorder) -> bool:
    """Returns whether a launcher started this process as a rank.

    The launcher itself has no LOCAL_RANK; children of a rank inherit its environment and do not
    count.
    """
    if "LOCAL_RANK" not in os.environ:
        return False
    mine = (recorder.process["rank"], recorder.process["world_size"])
    for folder in (recorder.run / JOURNAL_FOLDER).glob(f"{os.getppid()}-*"):
        try:
            parent = json.loads((folder / PROCESS_FILE).read_bytes())
        except (OSError, ValueError):
            continue
        if (parent.get("rank"), parent.get("world_size")) == mine:
            return False
    return True


HOOK = Hook("init_process_group", lambda context: install(context.recorder, context.stacks))
