"""Hooks functions in place, with the library of engines/trampolines.

A hooked function stays the same object: `is`, pickle and signatures work as before, and its calls
get no additional frame. How Python makes the call decides how it is hooked:

- a function or method written in C is called through its definition, a `PyMethodDef`;
- one written in Python is called through its `vectorcall`. Python 3.11 bypasses that for calls from
  other Python functions, newer versions for `__init__`; there the function gets another code, and
  `__code__` still returns its own.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dis import opmap
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType
from types import MethodDescriptorType as MethodDescriptor
from typing import Any, NamedTuple

SELF_ALONE, CONCURRENT = 1, 2
"""Flags of a hook, as in trampolines/hook.h: `begin` gets the first argument alone; it is silent
until there is a second thread."""

_CODE: Any = vars(FunctionType)["__code__"]
_CALLED = "lanescope"


class ChangedArguments(NamedTuple):
    """Returned by a `begin` to call the function with other arguments."""

    token: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] | None = None


class Ends(NamedTuple):
    """Callbacks for when a hooked function is called, returns and raises.

    `begin` gets the function's arguments and returns a token; None: skip the other two for this
    call. `done` gets the token and the result, `raised` the token and the exception.
    """

    begin: Callable[..., Any] | None = None
    done: Callable[[Any, Any], object] | None = None
    raised: Callable[[Any, BaseException], object] | None = None
    flags: int = 0


class LockEnds(NamedTuple):
    """Callbacks for a type of locks, in the order of trampolines/locks.h; see locks.py."""

    user_locks: set[int]
    held: dict[int, int] | None  # lock -> owner; None: `on_acquired` and `on_released` keep it
    mark_user_lock: Callable[[Any], bool]
    on_acquired: Callable[[Any], object]
    on_released: Callable[[Any], object]
    waits: Callable[[Any], Any]
    waited: Callable[[Any, Any, Any], object]


class Trampolines:
    """Wraps the library. One per process: functions keep pointers into it."""

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))
        anything, address, i32 = ctypes.py_object, ctypes.c_void_p, ctypes.c_int32

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, f"trampolines_{name}")
            found.restype = result
            found.argtypes = arguments
            return found

        self.prepare = function("prepare", None, anything, anything)
        self.concurrent = function("concurrent", None, i32)
        self._hook = function("hook", address, anything, anything, anything, i32)
        self._method = function("method", i32, anything, address)
        self._lock = function("lock", address, *[anything] * 9)
        self._lock_method = function("lock_method", i32, anything, address, i32)
        self._function = function("function", None, anything, address, address)
        self._inner = function("inner", anything, anything)
        self._exchanged = function("exchanged", None, *[anything] * 4)
        self._all_own = function("all_own", None, anything)
        self._has_outer = function("has_outer", i32, anything)
        self._setter = function("setter", i32, anything, anything, address)
        self._maker = function("maker", i32, anything, address)
        self._runner = function("runner", anything, anything, anything, anything, i32)
        in_progress = ctypes.c_int32.in_dll(library, "trampolines_assigning")
        self.assigning = ctypes.addressof(in_progress)
        self._others: set[FunctionType] = set()  # whose code is replaced

    def hook(self, function: Any, ends: Ends) -> Callable[[], None] | None:
        """Hooks a function; returns how to undo it, None for a kind that cannot be hooked."""
        if isinstance(function, FunctionType):
            return self._hook_function(function, self._hook(*ends))
        if not isinstance(function, (BuiltinFunctionType, MethodDescriptor)):
            return None
        if not self._method(function, self._hook(*ends)):
            return None
        return lambda: self._method(function, None)

    def lock(self, kind: type, ends: LockEnds) -> Callable[[], None]:
        """Hooks the methods of a type of locks."""
        own = vars(kind)
        lock = self._lock(own["acquire"], own["release"], *ends)
        names = (("acquire", "acquire_lock", "__enter__"), ("release", "release_lock", "__exit__"))
        methods = [own[name] for one in names for name in one if name in own]
        releasing = {id(own[name]) for name in names[1] if name in own}
        for method in methods:
            self._lock_method(method, lock, id(method) in releasing)

        def undo() -> None:
            for method in methods:
                self._lock_method(method, None, 0)

        return undo

    def setter(self, descriptor: Any, of: type, begin: Callable[[Any, Any], object]) -> Any:
        """Hooks assignments to an attribute written in C, of objects of that type and below."""
        hook = self._hook(begin, None, None, 0)
        if not isinstance(descriptor, GetSetDescriptorType):
            return None
        return self._setter(descriptor, of, hook) and (lambda: self._setter(descriptor, of, None))

    def maker(self, kind: type, done: Callable[[Any, Any], object]) -> Callable[[], None] | None:
        """Hooks the making of objects of a type written in C."""
        if not self._maker(kind, self._hook(None, done, None, 0)):
            return None
        return lambda: self._maker(kind, None)

    def around(
        self,
        function: Callable[..., Any],
        begin: Callable[[], Any],
        done: Callable[[Any], object],
        *,
        thread: bool,
    ) -> Callable[..., Any]:
        """Returns a callable: `begin`, then `function`, then `done` with the result of `begin`.

        `thread`: it is the first function of a thread, and its exceptions end the thread.
        """
        made: Callable[..., Any] = self._runner(function, begin, done, thread)
        return made

    def _hook_function(self, function: FunctionType, hook: int) -> Callable[[], None]:
        if not _runs_past_vectorcall(function):
            self._function(function, hook, None)
            return lambda: self._function(function, None, None)
        own = function.__code__
        inner = FunctionType(
            own,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        inner.__kwdefaults__ = function.__kwdefaults__
        inner.__qualname__ = function.__qualname__  # in what a call with wrong arguments raises
        outer = _code_calling(own, self._inner(function))
        self._function(function, hook, id(inner))
        function.__code__ = outer
        self._exchanged(function, outer, own, _CODE)
        self._others.add(function)

        def undo() -> None:
            if self._has_outer(function):  # else it is another's by now
                function.__code__ = own
            self._function(function, None, None)
            self._others.discard(function)
            if not self._others:
                self._all_own(_CODE)

        return undo


def _runs_past_vectorcall(function: FunctionType) -> bool:
    version = sys.version_info[:2]
    return version == (3, 11) or (version > (3, 11) and function.__name__ == "__init__")


def _code_calling(own: CodeType, called: object) -> CodeType:
    """Returns code with the parameters of `own` that forwards them to `called`."""
    positional, plain, only = own.co_posonlyargcount, own.co_argcount, own.co_kwonlyargcount
    made = _forwarding(positional, plain, only, bool(own.co_flags & 4), bool(own.co_flags & 8))
    names = own.co_varnames[: made.co_nlocals]
    renamed = {_CALLED: called, **dict(zip(made.co_varnames, names, strict=True))}

    def as_own(constant: Any) -> Any:
        if isinstance(constant, tuple):  # names of arguments
            return tuple(map(as_own, constant))
        return renamed.get(constant, constant)

    return made.replace(
        co_varnames=names,
        co_consts=tuple(map(as_own, made.co_consts)),
        co_filename=own.co_filename,
        co_firstlineno=own.co_firstlineno,
        co_name=own.co_name,
        co_qualname=own.co_qualname,
        co_freevars=own.co_freevars,
    )


@cache
def _forwarding(positional: int, plain: int, only: int, rest: bool, keywords: bool) -> CodeType:
    """Returns code that forwards its parameters to _CALLED; many functions have parameters alike.

    It has no RESUME, so Python treats its frame as not yet started and never shows it.
    """
    handed = [f"a{number}" for number in range(plain)]
    named = [f"a{number}" for number in range(plain, plain + only)]
    signature = [*handed[:positional], *["/"] * bool(positional), *handed[positional:]]
    if rest:
        signature.append("*args")
        handed.append(signature[-1])
    elif only:
        signature.append("*")
    signature += named
    handed += (f"{name}={name}" for name in named)
    if keywords:
        signature.append("**keywords")
        handed.append(signature[-1])
    # A constant is not called outright: the compiler would warn of it.
    source = f"def f({', '.join(signature)}): return (0 or {_CALLED!r})({', '.join(handed)})"
    compiled = compile(source, "<lanescope>", "exec", dont_inherit=True)
    (made,) = (one for one in compiled.co_consts if isinstance(one, CodeType))
    instructions = bytearray(made.co_code)
    for at in range(0, len(instructions), 2):
        if instructions[at] == opmap["RESUME"]:
            instructions[at] = opmap["NOP"]
            break
    return made.replace(co_code=bytes(instructions))
