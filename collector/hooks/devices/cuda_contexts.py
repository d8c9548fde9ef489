"""Records which thread initialised CUDA, on which device, and which devices threads choose.

The current device belongs to the thread: each begins with device 0, whatever its starter chose.
Writes marks. Never calls CUDA before the program uses it: a call would initialise it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from ...format.marks import CudaBegun, CudaBlock, CudaChosen, CudaForked, CudaRejected
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import Patches
from ..stacks import Stacks

_IN_CHILDREN = "use of CUDA in forked children"

_MAX_MARKS = 1000
"""Distinct marks of a process."""


class CudaContexts:
    """Marks the first use of CUDA, choices of devices, later forks, and use in forked children."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stacks = Stacks(recorder.intern, 1)
        self._local = threading.local()
        self._marked: set[tuple[int, str]] = set()
        self._forked_at = ""
        self._refuses = False
        self.on_initialised: Callable[[], None] | None = None

    def begun(self, place: str = "") -> None:
        """Marks the first use of CUDA; torch calls this on the thread that initialised it."""
        with self._recorder.contain_errors():
            place = place or self._stacks.place()
            self._mark(CudaBegun(_current(), place, *_surroundings()).encode())

    def chosen(self) -> None:
        """Marks that the calling thread has set its device."""
        device = _current()
        if getattr(self._local, "device", None) != device:
            self._local.device = device
            self._mark(CudaChosen(device, self._stacks.place()).encode())

    def entered(self, before: int, device: int) -> None:
        """Marks that the calling thread has set its device for a block."""
        if 0 <= device != before:
            self._mark(CudaBlock(device, before, self._stacks.place()).encode())

    def forking(self) -> None:
        """Marks that the process is about to fork."""
        with self._recorder.contain_errors():
            self._forked_at = ""
            if not self._recorder.closed and _in_use():
                self._forked_at = self._stacks.place()
                self._mark(CudaForked(self._forked_at).encode())

    def forked(self) -> None:
        """Begins to look, in a forked child, for calls in which torch refuses CUDA to it."""
        self._marked.clear()
        is_bad = optional("torch.cuda", "_is_in_bad_fork", _IN_CHILDREN)
        self._refuses = bool(self._forked_at and is_bad is not None and is_bad())

    def initialised(self, _: Any, __: Any) -> None:
        """Passes on that the program has made CUDA ready, for the first time or again."""
        if self.on_initialised is not None:
            self.on_initialised()

    def refused(self, _: Any, __: BaseException) -> None:
        """Marks that torch raised because a forked child asked for CUDA."""
        if self._refuses:
            self._mark(CudaRejected(self._stacks.place(), self._forked_at).encode())

    def _mark(self, text: str) -> None:
        recorder = self._recorder
        if recorder.closed or not recorder.active:
            return
        key = threading.get_ident(), text
        if key not in self._marked and len(self._marked) < _MAX_MARKS:
            self._marked.add(key)
            recorder.mark(text)


def install(recorder: Recorder) -> tuple[CudaContexts, Callable[[], None]]:
    """Hooks the use of CUDA devices. The fork hook stays, and does nothing afterwards."""
    contexts, patches = CudaContexts(recorder), Patches()
    module: Any = torch.cuda

    def entered(device: Any, _: Any) -> None:
        contexts.entered(device.prev_idx, device.idx)

    ends = contexts.initialised, contexts.refused
    patches.ends(module, "_lazy_init", None, *ends, lost=_IN_CHILDREN)
    patches.ends(module, "set_device", None, lambda _, __: contexts.chosen())
    for owner in (module.device, module.device_of):
        patches.ends(owner, "__enter__", lambda device: device, entered, self_alone=True)
    os.register_at_fork(before=contexts.forking)
    if _in_use():
        contexts.begun("a line before the recording")
    else:  # torch runs lazy calls when it initialises CUDA
        lazy_call = optional("torch.cuda", "_lazy_call", "where CUDA was first used")
        if lazy_call is not None:
            lazy_call(contexts.begun)

    return contexts, patches.undo


def _in_use() -> bool:
    module: Any = torch.cuda
    return bool(module.is_initialized())


def _current() -> int:
    # Not called in a build without CUDA, which lacks this function.
    device = optional("torch._C", "_cuda_getDevice", "CUDA devices that threads choose")
    return -1 if device is None else int(device())


def _surroundings() -> tuple[int, str, str]:
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    own = os.environ.get("LOCAL_RANK", "")
    return count, visible, own if own.isdigit() else ""


def _hook(context: HookContext) -> Undo:
    contexts, undo = install(context.recorder)
    context.share(contexts)
    return undo


HOOK = Hook("CUDA contexts", _hook)
