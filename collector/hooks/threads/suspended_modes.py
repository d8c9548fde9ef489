"""Notes training that runs without gradients since another function turned them off.

Modes of torch hold on the thread: where a generator yields, or a coroutine awaits, within its
`with no_grad():`, they hold for all that the thread does until it goes on. What a task of a pool
sets by set_grad_enabled(False) holds for all tasks that its thread runs later.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch

from ...format.loop_names import LEFT_MODE, SUSPENDED_MODE
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext
from ..patches import caller
from ..stacks import code_line, program_place
from ..training.modules import Modules

_MAX_VALUES, _MAX_PLACES = 1000, 100
"""Of a run: values that are written, and lines that are known to train without gradients."""

_MAX_TASKS = 1000
"""Tasks of an event loop that are kept weakly while one of them is within a mode."""

_LOST = "models that are trained within another function's no_grad()"


_SET = 0
"""In the place of a mode's identity: what set_grad_enabled() set."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Who entered a mode and may be suspended within, or have ended."""

    code: CodeType
    place: str
    # Of the event loop as a coroutine enters: it may start others so that they run in its mode.
    tasks: weakref.WeakSet[Any] | None = None
    series: str = SUSPENDED_MODE


class SuspendedModes:
    """Writes a value named SUSPENDED_MODE or LEFT_MODE for each training call without gradients
    that another function's mode spoils."""

    def __init__(self, recorder: Recorder, is_library: Callable[[str], bool]) -> None:
        self._recorder = recorder
        self._is_library = is_library
        self._held: dict[int, dict[int, _Held]] = {}  # by thread and identity of the mode
        self._called: dict[int, str] = {}  # by thread: name of its last call without gradients
        self._spoiled: dict[str, str] = {}  # line of such a call beside other tasks -> name
        self._values = 0

    def entered(self, mode: Any) -> None:
        """Notes who enters a mode, if it may be suspended within."""
        frame = caller()
        found = None if frame is None else self._suspendable(frame)
        if found is not None:
            self._held.setdefault(get_ident(), {})[id(mode)] = found

    def left(self, mode: Any) -> None:
        """Forgets a mode, whichever thread entered it."""
        for thread in list(self._held):
            self._forget(thread, id(mode))

    def sets(self, _: Any, mode: Any) -> None:
        """Notes a task of another thread than the main one that turns gradients off for good."""
        if get_ident() == threading.main_thread().ident:
            return  # before all else: each no_grad() of the program comes by here twice
        if not mode and not torch.is_grad_enabled():
            return  # as the end of no_grad() within the mode: it leaves the mode as it was
        self.restored(None)
        frame = None if mode else caller()
        if frame is None:
            return
        place = program_place(frame, self._is_library)
        outermost = self._outermost(frame)
        if outermost is not None:
            held = _Held(outermost, place, series=LEFT_MODE)
            self._held.setdefault(get_ident(), {})[_SET] = held

    def restored(self, _: Any) -> None:
        """Forgets what set_grad_enabled() set on this thread: it ended, or was used otherwise."""
        self._forget(get_ident(), _SET)

    def evaluates(self, module: torch.nn.Module) -> None:
        """Notes the call of a module that is to be trained, where a suspended mode holds."""
        if not self._held or not module.training:
            return
        held = self._suspended()
        if held is None:
            return
        with self._recorder.own_torch():
            trained = [*filter(lambda one: one.requires_grad, module.parameters())]
        if not trained:
            return
        place = program_place(caller(), self._is_library)
        name = f"{held.series}{place}/{held.place}"
        self._called[get_ident()] = name
        beside = held.tasks is not None or held.series == LEFT_MODE
        if beside and len(self._spoiled) < _MAX_PLACES:
            self._spoiled[place] = name

    def began(self, _: torch.nn.Module) -> None:
        """Reports a line that calls a module with gradients now, and without them before."""
        if self._spoiled:
            self._write(self._spoiled.pop(program_place(caller(), self._is_library), None))

    def backward(self) -> None:
        """Reports a call without gradients whose mode still holds as backward begins."""
        if self._called:
            name = self._called.pop(get_ident(), None)
            self._write(name if self._suspended() is not None else None)

    def _forget(self, thread: int, key: int) -> None:
        held = self._held.get(thread)
        if held and held.pop(key, None) is not None and not held:
            self._held.pop(thread, None)

    def _outermost(self, frame: FrameType | None) -> CodeType | None:
        """Returns the code of the program that a thread runs first of all, as for a task."""
        found = None
        while frame is not None:
            if not self._is_library(frame.f_code.co_filename):
                found = frame.f_code
            frame = frame.f_back
        return found

    def _suspendable(self, frame: FrameType) -> _Held | None:
        flags, back = frame.f_code.co_flags, frame.f_back
        place = code_line(frame.f_code, frame.f_lineno)
        if flags & inspect.CO_COROUTINE:
            tasks = _tasks()
            if 0 < len(tasks) <= _MAX_TASKS:
                return _Held(frame.f_code, place, weakref.WeakSet(tasks))
        # A library that iterates is a generator itself, one that makes a `with` of it is not.
        elif flags & inspect.CO_GENERATOR and back is not None:
            iterates = back.f_code.co_flags & inspect.CO_GENERATOR
            if iterates or not self._is_library(back.f_code.co_filename):
                return _Held(frame.f_code, place)
        return None

    def _suspended(self) -> _Held | None:
        """Returns a mode of this thread that was entered by a function which does not run now."""
        held = self._held.get(get_ident())
        if not held:
            return None
        running = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(frame.f_code)
            frame = frame.f_back
        for one in held.values():
            if one.code not in running and (one.tasks is None or _runs_one_of(one.tasks)):
                return one
        return None

    def _write(self, name: str | None) -> None:
        if name is not None and self._values < _MAX_VALUES and self._recorder.active:
            self._values += 1
            self._recorder.value(name, 1.0)


def _tasks() -> set[asyncio.Task[Any]]:
    """Returns the tasks of the thread's event loop; none where nothing runs one."""
    try:
        return asyncio.all_tasks()
    except RuntimeError:
        return set()


def _runs_one_of(tasks: weakref.WeakSet[Any]) -> bool:
    """Returns whether the thread's event loop runs one of these tasks."""
    try:
        return asyncio.current_task() in tasks
    except RuntimeError:
        return False


def _hook(context: HookContext) -> None:
    modules, patches = context.get(Modules), context.patches
    modes = context.share(SuspendedModes(context.recorder, context.stacks.is_library))
    for listeners, one in ((modules.began, modes.began), (modules.evaluates, modes.evaluates)):
        listeners.append(one)
        patches.also_undo(partial(listeners.remove, one))
    for kind in (torch.no_grad, torch.inference_mode):
        patches.ends(kind, "__enter__", modes.entered, self_alone=True, lost=_LOST)
        patches.ends(kind, "__exit__", modes.left, self_alone=True, lost=_LOST)
    sets: Any = torch.set_grad_enabled
    patches.ends(sets, "__init__", modes.sets, lost=_LOST)
    for name in ("__call__", "__exit__"):
        patches.ends(sets, name, modes.restored, self_alone=True, lost=_LOST)


HOOK = Hook(_LOST, _hook)
