"""Passes phase and place on to a started thread, and finds context variables that it misses.

Python gives a new thread an empty context, and a task of an executor the context of its thread
(PEP 567). So `ContextVar.get` returns the default there, though the starter had set a value. Each
read by the program's own code whose value differs from the starter's is reported, unless the thread
sets the variable later: it then has one of its own. Reads are observed from the first start of a
thread, or submission of a task, while a variable is set. Modes of torch that hold on the starter
alone (no_grad, autocast, a default device) are noted likewise where the thread does not have them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from multiprocessing.pool import Pool, ThreadPool
from threading import get_ident
from typing import Any

from ...format.marks import LostContext, LostMode
from ...journal import clock
from ...journal.own_lock import own_lock
from ...recorder.private_names import optional
from ...recorder.recorder import Recorder
from ..base import Hook, HookContext, Undo
from ..patches import ChangedArguments, Patches, around, caller
from ..stacks import PACKAGE_FOLDERS, Stacks
from .torch_modes import torch_modes

_COMPARED_BY_VALUE = (bool, int, float, str, bytes, type(None))
"""Types whose values are kept. Other values may be large: only their identity is kept."""

_EXECUTORS = "concurrent.futures.thread"
_LEFT = "_lanescope_left"

_MAX_REPORTS = 1000
"""Distinct reports of a run; bounds them where a program makes variables without end."""

Variable = ContextVar[Any]


@dataclass(slots=True)
class Inherited:
    """Values that a thread or a task could have from its starter, and those it missed so far."""

    what: str  # thread or task
    where: str  # file:line of the start
    phase: int
    stack: int  # text id of the stack that started it
    values: dict[Variable, tuple[type, Any]]
    modes: tuple[str, ...] = ()  # of torch
    began: int = 0  # instant; 0: the thread or task misses none of the modes
    missed: dict[Variable, tuple[str, int]] = field(default_factory=dict)  # sentence, instant


Before = tuple[Inherited | None, int, int]
"""What a thread had before a task: inherited values, and phase and stack of its start."""

NOTHING: Before = (None, 0, 0)


class Contexts:
    """Keeps the values of starters, and reports reads that miss them."""

    def __init__(self, recorder: Recorder, stacks: Stacks | None) -> None:
        self._recorder = recorder
        self._starts = stacks
        self._stacks = Stacks(recorder.intern, 1)
        self._inherited: dict[int, Inherited] = {}  # by the running thread's identity
        self._reported: set[str] = set()
        self._patches = Patches()
        self._lock = own_lock()
        self._watching = False

    def left(self, what: str) -> Inherited | None:
        """Returns what a `what` started now by the calling thread inherits; None: nothing."""
        recorder = self._recorder
        try:
            context = copy_context()
            state = getattr(recorder.local, "state", None)
            phase = 0 if state is None else state.phase
            stack = self._starts.capture(f" (where the {what} was started)") if self._starts else 0
            modes = torch_modes()
            if not len(context) and not modes:
                return Inherited(what, "", phase, stack, {}) if phase or stack else None
            if len(context):
                self._watch()
            values = {variable: _trace(value) for variable, value in context.items()}
            return Inherited(what, self._stacks.place(), phase, stack, values, modes)
        except Exception as error:
            recorder.failed(error)
            return None

    def enter(self, inherited: Inherited | None) -> Before:
        """Begins a task on the calling thread; returns the argument for `leave`."""
        own = get_ident()
        state = getattr(self._recorder.local, "state", None)
        carried = (0, 0) if state is None else (state.carried, state.started)
        before = self._inherited.pop(own, None), *carried
        if inherited is not None:
            inherited.modes = tuple(set(inherited.modes) - set(torch_modes()))
            inherited.began = clock.now() if inherited.modes else 0
            if inherited.values or inherited.modes:
                self._inherited[own] = inherited
        self._carry(*((0, 0) if inherited is None else (inherited.phase, inherited.stack)))
        return before

    def leave(self, before: Before) -> None:
        """Ends the task."""
        inherited = self._inherited.pop(get_ident(), None)
        if inherited is not None:
            for sentence, instant in inherited.missed.values():
                self._report(sentence, instant)
            self._report_modes(inherited)
        outer, *carried = before
        if outer is not None:
            self._inherited[get_ident()] = outer
        self._carry(*carried)

    def _carry(self, phase: int, stack: int) -> None:
        state = getattr(self._recorder.local, "state", None)
        if state is None:
            return
        state.started = stack
        if state.carried != phase:
            state.carried = phase
            if not state.phases:
                state.phase = phase

    # reads ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._watching:
            return
        with self._lock:
            if not self._watching:
                self._patches.ends(ContextVar, "get", self._read, self._found, self._unset)
                self._patches.ends(ContextVar, "set", self._sets, self_alone=True)
                self._watching = True

    def _read(self, variable: Variable, *default: Any) -> tuple[Inherited, Variable, bool] | None:
        inherited = self._inherited.get(get_ident())
        if inherited is None or variable not in inherited.values or variable in copy_context():
            return None
        return inherited, variable, bool(default)

    def _found(self, read: tuple[Inherited, Variable, bool], found: Any) -> None:
        inherited, variable, with_default = read
        if _trace(found) != inherited.values.get(variable):
            self._missing(inherited, variable, "a fallback" if with_default else "its default")

    def _unset(self, read: tuple[Inherited, Variable, bool], error: BaseException) -> None:
        if isinstance(error, LookupError):
            self._missing(*read[:2], "nothing")

    def _sets(self, variable: Variable) -> None:
        inherited = self._inherited.get(get_ident())
        if inherited is not None:
            inherited.values.pop(variable, None)
            inherited.missed.pop(variable, None)

    def _missing(self, inherited: Inherited, variable: Variable, found: str) -> None:
        with self._recorder.contain_errors():
            frame = caller(2)
            if frame is None:
                return
            file = frame.f_code.co_filename
            # How a library deals with a thread without a context is not the program's fault.
            if self._stacks.is_library(file) or file.startswith(PACKAGE_FOLDERS):
                return
            known = inherited.missed.pop(variable, None)
            if known is None:
                inherited.missed[variable] = (
                    LostContext(
                        variable.name,
                        f"{file}:{frame.f_lineno}",
                        found,
                        inherited.what,
                        inherited.where,
                    ).encode(),
                    clock.now(),
                )
            else:  # read again, and not set between
                inherited.values.pop(variable, None)
                self._report(*known)

    def _report_modes(self, inherited: Inherited) -> None:
        now = clock.now()
        for mode in inherited.modes:
            mark = LostMode(mode, now - inherited.began, inherited.what, inherited.where)
            self._report(mark.encode(), now)

    def _report(self, sentence: str, instant: int) -> None:
        recorder = self._recorder
        with recorder.contain_errors():
            if recorder.closed or not recorder.active:
                return
            if len(self._reported) >= _MAX_REPORTS and sentence not in self._reported:
                return
            self._reported.add(sentence)
            recorder.mark(sentence, instant)

    # tasks ---------------------------------------------------------------------------------

    def install(self) -> Callable[[], None]:
        """Propagates context to tasks of executors and pools; `threads` does so for threads."""
        lost = "what tasks of ThreadPoolExecutor inherit"
        item = optional(_EXECUTORS, "_WorkItem", lost)
        if item is not None:
            self._patches.ends(item, "__init__", self._submits, self_alone=True)
            ends = self._runs, self._ran, self._ran
            self._patches.ends(item, "run", *ends, self_alone=True, lost=lost)
        # All of a pool's methods for tasks call these. `_submits_to_pool` skips pools of processes.
        lost = "what tasks of Pool.map and starmap inherit"
        for name in ("apply_async", "imap", "imap_unordered", "_map_async"):
            self._patches.ends(
                Pool, name, self._submits_to_pool, lost=lost if name[0] == "_" else ""
            )

        def uninstall() -> None:
            self._watching = True  # a thread that starts now must not hook again
            self._patches.undo()

        return uninstall

    def _submits(self, item: Any) -> None:
        setattr(item, _LEFT, self.left("task"))

    def _runs(self, item: Any) -> Before:
        return self.enter(vars(item).pop(_LEFT, None))

    def _ran(self, before: Before, _: Any) -> None:
        self.leave(before)

    def _submits_to_pool(self, *args: Any, **keywords: Any) -> ChangedArguments | None:
        """Wraps a task for a pool of threads, so that it runs with the caller's context."""
        if not args or not isinstance(args[0], ThreadPool):
            return None
        pool, *rest = args
        if rest:
            rest[0] = self._task(rest[0])
        elif "func" in keywords:
            keywords["func"] = self._task(keywords["func"])
        return ChangedArguments(None, (pool, *rest), keywords)

    def _task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` wrapped to run with what the calling thread leaves."""
        left = self.left("task")
        return around(function, lambda: self.enter(left), self.leave)


def _trace(value: Any) -> tuple[type, Any]:
    """Returns a key to compare a value without keeping it alive or calling its methods."""
    kind = type(value)
    return kind, value if kind in _COMPARED_BY_VALUE else id(value)


def _hook(context: HookContext) -> Undo:
    return context.share(Contexts(context.recorder, context.collective_stacks)).install()


HOOK = Hook("context variables", _hook)
