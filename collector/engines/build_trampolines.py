"""Builds the library that hooks functions where they are, on first use, and keeps it.

It depends on no version of torch or Python: one build, of two seconds, serves all of them.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import sysconfig
from pathlib import Path

from .built_libraries import (
    PREBUILT,
    BuildError,
    check_compiled,
    compiler_identity,
    ensure_built,
    find_compiler,
    find_prebuilt,
    run_compiler,
)

TRAMPOLINES_FILE = "trampolines.so"

_SOURCES = Path(__file__).parent / "trampolines"
_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-Wall",
    "-Wextra",
    "-shared",
)
"""No exceptions, so no destructor runs where a daemon thread that waits in a hooked function is
ended with the interpreter (pthread_exit unwinds its stack): it does not hold Python's lock."""


def ensure_trampolines() -> Path:
    """Returns the library, built if it is not there yet. Raises BuildError."""
    if sys.implementation.name != "cpython" or sys.maxsize < 2**32:
        raise BuildError("it is made for CPython on 64 bits")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("it is made for a Python with an interpreter lock")
    if not (3, 10) <= sys.version_info[:2] <= (3, 14):
        raise BuildError(f"it is made for Python 3.10 to 3.14, this is {platform.python_version()}")
    name = trampolines_name()
    brought = find_prebuilt(name, TRAMPOLINES_FILE) if PREBUILT.is_dir() else None
    if brought is not None:
        return brought
    compiler = find_compiler()
    key = trampolines_name(compiler_identity(compiler))
    return ensure_built(key, TRAMPOLINES_FILE, compiler, compile_trampolines)


def trampolines_name(*more: object) -> str:
    """Returns the folder of the library: a digest of its sources, and of what else decides."""
    digest = hashlib.sha256()
    for source in sorted(path for path in _SOURCES.iterdir() if path.suffix in (".cpp", ".h")):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(repr((_FLAGS, platform.machine(), *more)).encode())
    return f"trampolines-{digest.hexdigest()[:16]}"


def compile_trampolines(compiler: Path, into: Path) -> None:
    """Compiles TRAMPOLINES_FILE in the folder `into`. Raises BuildError."""
    parts = map(str, sorted(_SOURCES.glob("*.cpp")))
    command = (str(compiler), *_FLAGS, *parts, "-o", str(into / TRAMPOLINES_FILE))
    check_compiled(run_compiler(command, into), compiler)
