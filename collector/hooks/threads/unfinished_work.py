"""Records what daemon threads have not done of their queues as the process ends."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...format.loop_names import UNFINISHED_WORK
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..stacks import program_place


class Takers:
    """Knows by which thread an item of each queue was taken last."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._last: weakref.WeakKeyDictionary[Any, tuple[int, int]] = weakref.WeakKeyDictionary()

    def takes(self, queue: Any) -> None:
        """Notes that the calling thread is about to take an item: ident and ordinal."""
        state = getattr(self._recorder.local, "state", None)
        if state is not None:
            with contextlib.suppress(TypeError):  # a class of queues may have no hash
                self._last[queue] = threading.get_ident(), state.ordinal

    def close(self) -> None:
        """Writes a value named UNFINISHED_WORK for each queue with items for a daemon thread."""
        frames = sys._current_frames()
        daemons = {one.ident for one in threading.enumerate() if one.daemon}
        for queue, (ident, ordinal) in list(self._last.items()):
            left = sum(map(_holds_data, list(getattr(queue, "queue", ()))))
            if left and ident in daemons and ident in frames:
                place = program_place(frames[ident], self._is_library)
                self._recorder.value(f"{UNFINISHED_WORK}{place}/{ordinal}", float(left))


def _holds_data(item: Any, depth: int = 2) -> bool:
    """Whether an item is more than a sign to stop."""
    if isinstance(item, Mapping):
        return bool(item)
    if isinstance(item, Sequence) and not isinstance(item, str) and depth:
        return any(_holds_data(one, depth - 1) for one in item)
    return isinstance(item, torch.Tensor) or type(item).__name__ == "ndarray"


def _hook(context: HookContext) -> Undo:
    takers = context.share(Takers(context.recorder, context.stacks.is_library))
    return takers.close


HOOK = Hook("work of daemon threads", _hook)
