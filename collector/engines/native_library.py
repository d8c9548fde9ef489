"""The native engine's shared library, and the functions in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..format.options import Options
from ..recorder.messages import say
from . import build, built_libraries
from .host_reader import HostReader

NATIVE = "native"

_ONE_ARGUMENT = 8  # METH_O

_METHODS: list[_MethodDef] = []
"""Keeps the definitions alive, to which the functions refer."""

_NEW_FUNCTION = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


class EngineError(Exception):
    """The requested engine is not available; the message is one sentence."""


def library_for(options: Options) -> Library | None:
    """Loads the observer's library; None: the portable engine records.

    Raises EngineError if the native engine was requested by name and is not available.
    """
    if not options.native:
        return None
    try:
        return Library(build.ensure())
    except (built_libraries.BuildError, OSError) as error:
        if options.engine == NATIVE:
            raise EngineError(f"the native engine cannot be used: {error}") from error
        say(f"recording with the portable engine: {error}")
        return None


class _MethodDef(ctypes.Structure):
    """`PyMethodDef` of Python's stable interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Library:
    """The functions of interface.cpp. Short calls keep the interpreter's lock."""

    def __init__(self, path: Path) -> None:
        library = ctypes.PyDLL(str(path))
        c_text, c_any, i32, i64 = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        u32 = ctypes.c_uint32
        # c_void_p takes an integer without creating a ctypes object, which halves a call's time.
        number = ctypes.c_void_p

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(library, f"lanescope_{name}")
            found.restype = result
            found.argtypes = arguments
            return found

        self.reader = HostReader(path)
        self.settings = function("settings", None, i32, i32, i32, i32, i32, i32, i32, i64)
        self.fingerprint = function("fingerprint", i32, c_any, c_any)
        self.patterns = function("patterns", None, c_text, c_text, c_text)
        self.stacks = function("stacks", None, i64, c_text, c_text, c_text)
        self.begin = function("begin", None, c_text, i64)
        self.end = function("end", None)
        self.follow = function("follow", None, c_text)
        self.detach = function("detach", None)
        self.install = function("install", None)
        self.remove = function("remove", None)
        self.moment = function("moment", None, number, number, number)
        self.describe = function("describe", None, c_text)
        self.opened = function("opened", i32)
        self.failure = function("failure", i32)
        self.intern = function("intern", u32, c_text, i64)
        self.reserve = function("reserve", u32)
        self.enter = function("enter", c_any, i64, i32, i64)
        self.entered = function("entered", c_any)
        self.leave = function("leave", None)
        self.append = function("append", None, c_text, number)
        self.keep = function("keep", None, c_text)
        self.sync = function("sync", None, number, number, number, number)
        self.device_sync = function("device_sync", None, i32, i64, ctypes.c_uint64, i32)
        self._handed_over = library.lanescope_handed_over
        self.enter_module = function("enter_module", None, number, number)
        self.leave_module = function("leave_module", u32)
        self.module_gone = function("module_gone", None)
        self.module_entered = _builtin(b"module_entered", library.lanescope_module_entered)
        self.module_left = _builtin(b"module_left", library.lanescope_module_left)
        self.push_open = function("push_open", u32, c_text)
        self.pop_open = function("pop_open", None, number)
        self.count = function("count", None, c_any)
        self.progress = function("progress", ctypes.c_uint64)
        self.watch = function("watch", None, c_text, i32, i32, i64, i32)
        self.watched = function("watched", None)
        self.stop_watching = function("stop_watching", None)
        self.choose_kernel = function("choose_kernel", i32, i32)  # for tests
        # for tests: numbers of Fault in fault_injection.h
        self.plant = function("plant", None, i32)

    def handover_of(self, kind: int) -> Callable[[Any], object]:
        """Returns a function that stores a sync event of its argument, by the object's address."""
        return _builtin(b"handed_over", self._handed_over, int(kind))


def _builtin(name: bytes, function: Any, bound: object = None) -> Callable[[Any], object]:
    """Returns a built-in function of one argument."""
    method = _MethodDef(name, ctypes.cast(function, ctypes.c_void_p), _ONE_ARGUMENT, None)
    _METHODS.append(method)
    made: Callable[[Any], object] = _NEW_FUNCTION(ctypes.addressof(method), bound, None)
    return made
