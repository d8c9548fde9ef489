"""Records what each thread adds to the gradients, where several threads run backward.

An optimizer sees the sum over the threads. Hooks on the parameters see each gradient on the thread
that computed it, before it is added. Hooks are registered only while no backward runs, because the
engine reads them without a lock. Parameters on a GPU are not supported, because one thread of torch
runs its nodes for all callers; nor are shards, because each has only a part of the norm. A model
with such parameters is skipped.
"""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...format.names import ADDED_NORM, ADDED_NORM_OF
from ...journal.own_lock import own_lock
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from .modules import Modules
from .norms import Norms
from .optimizer_parameters import is_whole

Added = list[tuple[str, torch.Tensor]]
"""Norms of what a backward adds to gradients, each with the module that holds the parameter."""


class _Threads:
    """Whether one thread alone did something so far."""

    def __init__(self) -> None:
        self._first: Any = None  # state of a thread
        self.alone = True

    def note(self, state: Any) -> None:
        """Notes a thread that does it."""
        if self._first is None:
            self._first = state
        self.alone = self.alone and self._first is state


class ThreadGradients:
    """Writes norms per backward, of all parameters and of each module's.

    Starts when a second thread of the process runs a backward.
    """

    def __init__(self, recorder: Recorder, modules: Modules, norms: Norms) -> None:
        self._recorder = recorder
        self._modules = modules
        self._norms = norms
        self._lock = own_lock()
        self._running = 0  # calls of the engine, on all threads
        self._backward = _Threads()  # that ran backward
        self._training = _Threads()  # that may make or drop gradients
        self._thread: Any = threading.local()  # calls: what each adds, innermost last
        self._hooked: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}  # by id, with handle

    def begin(self) -> None:
        """Begins a backward that adds to gradients, on the calling thread."""
        calls: list[Added] = vars(self._thread).setdefault("calls", [])
        calls.append([])
        state = self._recorder.thread()
        with self._lock:
            self._training.note(state)
            self._backward.note(state)
            self._running += 1
            # A thread that begins now waits for the lock.
            if not self._backward.alone and self._running == 1:
                self._put_hooks()

    def trains(self) -> None:
        """Notes that the calling thread is about to make or drop gradients, without `begin`."""
        state = self._recorder.thread()
        with self._lock:
            self._training.note(state)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Yields True if no other thread has trained; keeps one from beginning meanwhile.

        torch writes `grad` without Python's lock, in a backward and where a gradient is dropped:
        until it is freed, `grad` still leads to it. Reading it of a parameter that another thread
        trains crashes the process.
        """
        state = self._recorder.thread()
        with self._lock:
            self._training.note(state)
            yield self._training.alone

    def end(self) -> None:
        """Ends a backward that returned or raised."""
        calls: list[Added] = vars(self._thread).get("calls", [])
        if not calls:
            return
        with self._lock:
            self._running -= 1
        added = calls.pop()
        if calls:  # one inside another (checkpointing) adds to the same sum
            calls[-1] += added
        elif added and self._recorder.active:
            self._write(added)

    def _write(self, added: Added) -> None:
        with self._recorder.own_torch(), torch.no_grad():
            norms = torch.stack([norm for _, norm in added]).tolist()
        squares: dict[str, float] = defaultdict(float)
        for (module, _), norm in zip(added, norms, strict=True):
            squares[module] += norm * norm
        self._recorder.value(ADDED_NORM, math.sqrt(sum(squares.values())))
        for module, square in squares.items():
            self._recorder.value(ADDED_NORM_OF + module, math.sqrt(square))

    def remove(self) -> None:
        """Removes all hooks."""
        for _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()

    def forked(self) -> None:
        """Resets a forked child: it has one thread."""
        self._running = len(vars(self._thread).get("calls", ()))
        self._training = _Threads()

    def _put_hooks(self) -> None:
        found = self._modules.parameters()
        own: list[Any] = [(p, name) for p, name in found if p.requires_grad and p.is_leaf]
        if not all(p.device.type == "cpu" and is_whole(p) for p, _ in own):
            return
        # torch does not warn a program that shares its model between processes of such a hook.
        unserializable = optional(
            "torch.utils.hooks", "unserializable_hook", "what each thread adds to gradients"
        )
        if unserializable is None:
            return
        for parameter, name in own:
            known = self._hooked.get(id(parameter))
            if known is None or known[0]() is not parameter:
                module = name.rpartition(".")[0]
                handle = parameter.register_hook(unserializable(partial(self._added, module)))
                self._hooked[id(parameter)] = (weakref.ref(parameter), handle)

    def _added(self, module: str, gradient: torch.Tensor) -> None:
        calls = vars(self._thread).get("calls")
        if not calls or not self._recorder.active:
            return
        with self._recorder.contain_errors(), self._recorder.own_torch(), torch.no_grad():
            values = gradient.coalesce().values() if gradient.is_sparse else gradient
            calls[-1].append((module, self._norms.of([values])[0]))


def _hook(context: HookContext) -> Undo:
    made = ThreadGradients(context.recorder, context.get(Modules), context.get(Norms))
    return context.share(made).remove


HOOK = Hook("gradients by thread", _hook)
