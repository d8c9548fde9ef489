"""What each thread adds to the gradients, where several threads of a process run backward.

An optimizer sees the sum over the threads. Hooks on the parameters see each gradient on the thread
that computed it, before it is added. A hook is put on a tensor only while no backward runs: the
engine reads a tensor's hooks without a lock. A GPU's nodes run on one thread of torch's for all who
call, and a shard is a part of its norm: where there are such parameters, nothing is said.
"""

from __future__ import annotations

import threading
import weakref
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook

from ..kinds import ADDED_NORM
from ..recorder import Recorder
from .held import is_whole
from .modules import Modules
from .norms import Norms


class Contributions:
    """Writes a number per backward, from when a second thread of the process runs one."""

    def __init__(self, recorder: Recorder, modules: Modules, norms: Norms) -> None:
        self._recorder = recorder
        self._modules = modules
        self._norms = norms
        self._lock = threading.Lock()
        self._running = 0  # calls of the engine, on all threads
        self._first: Any = None  # state of the first thread that ran backward
        self._several = False
        self._told: Any = threading.local()  # calls: norms of each, innermost last
        # A program that shares its model between processes is not warned of a hook marked so.
        unserializable: Any = unserializable_hook
        self._hook = unserializable(partial(self._added))
        self._hooked: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}  # by id, with handle

    def begin(self) -> None:
        """A backward that adds to gradients begins on the calling thread."""
        calls: list[list[torch.Tensor]] = vars(self._told).setdefault("calls", [])
        calls.append([])
        state = self._recorder.thread()
        with self._lock:
            if self._first is None:
                self._first = state
            self._several = self._several or self._first is not state
            self._running += 1
            if self._several and self._running == 1:  # whoever comes now waits for the lock
                self._put_hooks()

    def end(self) -> None:
        """It has ended, however it did."""
        calls: list[list[torch.Tensor]] = vars(self._told).get("calls", [])
        if not calls:
            return
        with self._lock:
            self._running -= 1
        norms = calls.pop()
        if calls:  # one inside another (checkpointing) adds to the same sum
            calls[-1] += norms
        elif norms and self._recorder.active:
            with self._recorder.unseen(), torch.no_grad():
                total = torch.stack(norms).square().sum().sqrt()
            self._recorder.value(ADDED_NORM, float(total))

    def remove(self) -> None:
        """Take off all hooks."""
        for _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    def forked(self) -> None:
        """In a forked child: it has one thread, and the lock may be another's for ever."""
        self._lock = threading.Lock()
        self._running = len(vars(self._told).get("calls", ()))

    def _put_hooks(self) -> None:
        found = self._modules.parameters()
        own: list[Any] = [one for one, _ in found if one.requires_grad and one.is_leaf]
        if not all(p.device.type == "cpu" and is_whole(p) for p in own):
            return
        for parameter in own:
            known = self._hooked.get(id(parameter))
            if known is None or known[0]() is not parameter:
                handle = parameter.register_hook(self._hook)
                self._hooked[id(parameter)] = (weakref.ref(parameter), handle)

    def _added(self, gradient: torch.Tensor) -> None:
        calls = vars(self._told).get("calls")
        if not calls or not self._recorder.active:
            return
        with self._recorder.guarded(), self._recorder.unseen(), torch.no_grad():
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            calls[-1].append(self._norms.of([values])[0])
