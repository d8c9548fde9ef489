"""Hooks functions and methods, and removes the hooks.

With the library of `trampolines.py` a hooked function stays the same object. Without a compiler to
build it, another function takes its place. A program can notice that; the run's coverage says so.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar

from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..recorder.private_names import optional, unavailable
from .not_compiled import run_as_it_is
from .trampolines import CONCURRENT, SELF_ALONE, ChangedArguments, Ends, LockEnds, Trampolines

__all__ = ["ChangedArguments", "Patches", "around", "assigning", "caller", "concurrent", "prepare"]

_REPLACED = "calls without other functions in the place of the program's"


class _Means:
    """Holds how functions of this process are hooked."""

    library: Trampolines | None = None
    failed: Callable[[BaseException], object] = staticmethod(lambda error: None)
    concurrent = False
    why = ""  # reason for having no library
    hooked: ClassVar[set[int]] = set()  # ids of functions that are hooked in place
    stepping: ClassVar[list[Callable[[Any], None]]] = []  # called before a step of an optimizer


def prepare(library: Path | None, failed: Callable[[BaseException], object], why: str = "") -> None:
    """Sets the library for all hooks, and the receiver of their exceptions. Call it first."""
    if library is None:
        _Means.library, _Means.why = None, why
        unavailable(_REPLACED, why)
    elif _Means.library is None:
        _Means.library = Trampolines(library)
    _Means.failed = failed
    if _Means.library is not None:
        _Means.library.prepare(failed, ChangedArguments)
    concurrent(is_so=False)


def concurrent(*, is_so: bool) -> None:
    """Sets whether there is more than one thread; without one, sync hooks stay silent."""
    _Means.concurrent = is_so
    if _Means.library is not None:
        _Means.library.concurrent(is_so)


def hooks_in_place() -> bool:
    """Returns whether hooked functions stay the same objects."""
    return _Means.library is not None


def assigning() -> int:
    """Returns the address of an int32: how many assignments hooked by `Patches.setter` are in
    progress. 0 without the library.

    While there are any, an attribute may lead to a tensor that is being freed.
    """
    return _Means.library.assigning if _Means.library is not None else 0


class Patches:
    """Hooks of one module. The coverage names functions that cannot be hooked."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._hooked: list[Any] = []

    def ends(
        self,
        owner: Any,
        name: str,
        begin: Callable[..., Any] | None = None,
        done: Callable[[Any, Any], object] | None = None,
        raised: Callable[[Any, BaseException], object] | None = None,
        *,
        self_alone: bool = False,
        when_concurrent: bool = False,
        lost: str = "",
        also: Sequence[str] = (),
    ) -> None:
        """Calls `begin`, `done` and `raised` (see `Ends`) around a method or a module's function.

        `self_alone`: `begin` gets only the first argument. `when_concurrent`: nothing is called
        until there is a second thread. `lost`: what goes unrecorded if this version has no such
        name. `also`: other modules that hold the function. Raises ValueError where another one has
        hooked it.
        """
        if lost:
            module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
            path = name if isinstance(owner, ModuleType) else f"{owner.__qualname__}.{name}"
            optional(module, path, lost)
        found = vars(owner).get(name)
        if found is None:
            return
        function = getattr(found, "__func__", found)  # of a static method, or one of pybind's
        if any(one is function for one in self._hooked):  # known by two names
            return
        self._hooked.append(function)
        for one in (begin, done, raised):
            if one is not None:
                run_as_it_is(one)
        flags = SELF_ALONE * self_alone | CONCURRENT * when_concurrent
        hooks = Ends(begin, done, raised, flags)
        key = id(function)
        if key in _Means.hooked:  # this hook would take that one's place
            raise ValueError(f"{name} of {owner} has a hook already")
        undo = _Means.library.hook(function, hooks) if _Means.library is not None else None
        if undo is not None:
            _Means.hooked.add(key)
            self._undo += [partial(_Means.hooked.discard, key), undo]
            return
        wrapped: Any = _wrapped(function if _is_static(found) else found, hooks)
        for holder in (owner, *filter(None, map(sys.modules.get, also))):
            if vars(holder).get(name) is found:
                self.put(holder, name, type(found)(wrapped) if _is_static(found) else wrapped)

    def locks(self, kind: type, ends: LockEnds) -> None:
        """Calls the callbacks of `LockEnds` around the methods of a type of locks."""
        if _Means.library is not None:
            self._undo.append(_Means.library.lock(kind, ends))
            return
        acquire, release = vars(kind)["acquire"], vars(kind)["release"]
        for names, method in (
            (("acquire", "acquire_lock", "__enter__"), _acquiring(acquire, release, ends)),
            (("release", "release_lock", "__exit__"), _releasing(release, ends)),
        ):
            for name in names:
                if name in vars(kind):
                    self.put(kind, name, method)

    def setter(
        self, owner: type, name: str, of: type, begin: Callable[[Any, Any], object], lost: str
    ) -> None:
        """Calls `begin` with object and value before each assignment to an attribute written in C.

        Of objects of the type `of`, once there is a second thread. `del` gives None.
        """
        descriptor = optional(owner.__module__, f"{owner.__qualname__}.{name}", lost)
        self._only_in_place(lambda by: by.setter(descriptor, of, begin), lost)

    def maker(self, kind: type, done: Callable[[Any, Any], object], lost: str) -> None:
        """Calls `done` with None and each new object of a type, once there is a second thread."""
        self._only_in_place(lambda by: by.maker(kind, done), lost)

    def _only_in_place(
        self, hook: Callable[[Trampolines], Callable[[], None] | None], lost: str
    ) -> None:
        undo = hook(_Means.library) if _Means.library is not None else None
        if undo is not None:
            self._undo.append(undo)
        else:
            unavailable(lost, _Means.why)

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replaces an object of a class or module; the program sees the replacement.

        A class written in C refuses new attributes, but looks its methods up in a dictionary like
        any other class. A replacement there is effective for existing instances too, and under
        every name by which the program imported the class.
        """
        original = vars(owner)[name]
        assign = _assign_to_builtin if isinstance(original, type(type.mro)) else setattr
        assign(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is replacement:  # else it is another's by now
                assign(owner, name, original)

        self._undo.append(undo)

    def before_steps(self, begin: Callable[[Any], None]) -> None:
        """Calls `begin` with the optimizer before each step of an optimizer of torch."""
        if not _Means.stepping:
            self.also_undo(register_optimizer_step_pre_hook(_steps).remove)
        _Means.stepping.append(begin)
        self.also_undo(partial(_Means.stepping.remove, begin))

    def also_undo(self, undo: Callable[[], object]) -> None:
        """Calls `undo` as the hooks are removed: before earlier ones, after later ones."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Removes all hooks."""
        while self._undo:
            self._undo.pop()()
        self._hooked.clear()


def around(
    function: Callable[..., Any],
    begin: Callable[[], Any],
    done: Callable[[Any], object],
    *,
    thread: bool = False,
) -> Callable[..., Any]:
    """Returns a callable: `begin`, then `function`, then `done` with the result of `begin`.

    `thread`: it is the first function of a thread. Tracebacks still name the function.
    """
    for one in (begin, done):
        run_as_it_is(one)
    if _Means.library is not None:
        return _Means.library.around(function, begin, done, thread=thread)

    @wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        token = _call_safely(begin)
        try:
            return function(*args, **keywords)
        finally:
            _call_safely(done, token)

    return run


def caller(depth: int = 1) -> FrameType | None:
    """Returns the frame that called a hooked function; `depth`: frames between here and `begin`.

    Skips the frames of replaced functions.
    """
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _steps(optimizer: Any, *_: Any) -> None:
    """Calls what listens to steps: torch takes longer to call a hook than most of them take."""
    for begin in _Means.stepping:
        _call_safely(begin, optimizer)


# Without the library ---------------------------------------------------------------------------


def _is_static(found: Any) -> bool:
    return isinstance(found, (staticmethod, classmethod))


def _call_safely(callback: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Returns the result of a callback; reports its exception and returns None."""
    try:
        return callback(*args, **keywords)
    except Exception as error:
        _Means.failed(error)
        return None


def _wrapped(original: Callable[..., Any], ends: Ends) -> Callable[..., Any]:
    begin, done, raised, flags = ends

    @wraps(original)
    def call(*args: Any, **keywords: Any) -> Any:
        if flags & CONCURRENT and not _Means.concurrent:
            return original(*args, **keywords)
        token: Any = None
        if begin is not None:
            token = (
                _call_safely(begin, args[0])
                if flags & SELF_ALONE
                else _call_safely(begin, *args, **keywords)
            )
            if token is None:
                return original(*args, **keywords)
        if isinstance(token, ChangedArguments):
            token, args, changed = token
            keywords = changed or {}
        try:
            result = original(*args, **keywords)
        except BaseException as error:
            if raised is not None:
                _call_safely(raised, token, error)
            raise
        if done is not None:
            _call_safely(done, token, result)
        return result

    return call


def _acquiring(
    original: Callable[..., Any], release: Callable[..., Any], ends: LockEnds
) -> Callable[..., Any]:
    @wraps(original)
    def acquire(self: Any, blocking: bool = True, timeout: float = -1) -> Any:
        if not _Means.concurrent or not (id(self) in ends.user_locks or ends.mark_user_lock(self)):
            return original(self, blocking, timeout)
        got = False
        try:
            if blocking is True and timeout == -1 and original(self, False):
                got = True
                if ends.held is not None:
                    ends.held[id(self)] = get_ident()
                ends.on_acquired(self)
                return got
            token = ends.waits(self)
            try:
                got = original(self, blocking, timeout)
            finally:
                ends.waited(self, token, got)
        except BaseException:
            # The caller assumes that the lock was not acquired.
            if got:
                release(self)
            raise
        return got

    return acquire


def _releasing(original: Callable[..., Any], ends: LockEnds) -> Callable[..., Any]:
    @wraps(original)
    def release(self: Any, *_: Any) -> Any:
        try:
            if _Means.concurrent and (id(self) in ends.user_locks or ends.mark_user_lock(self)):
                if ends.held is not None:
                    ends.held.pop(id(self), None)
                ends.on_released(self)
        finally:
            original(self)

    return release


def _assign_to_builtin(owner: Any, name: str, value: Any) -> None:
    gc.get_referents(owner.__dict__)[0][name] = value
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
