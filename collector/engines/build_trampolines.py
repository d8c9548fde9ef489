"""Builds the library that hooks functions where they are, on first use, and keeps it.

It depends on no version of torch or Python: one build, of two seconds, serves all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from .build import (
    COMPILERS,
    RETRY_S,
    BuildError,
    _check,
    _identity_of,
    _locked,
    _run,
    engine_folder,
    find_compiler,
)

_SOURCES = Path(__file__).parent / "trampolines"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared")


def ensure_trampolines() -> Path:
    """Returns the library, built if it is not there yet. Raises BuildError."""
    if sys.implementation.name != "cpython" or sys.maxsize < 2**32:
        raise BuildError("it is made for CPython on 64 bits")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError("it is made for a Python with an interpreter lock")
    if not (3, 10) <= sys.version_info[:2] <= (3, 14):
        raise BuildError(f"it is made for Python 3.10 to 3.14, this is {platform.python_version()}")
    compiler = find_compiler()
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.glob("*.*")):
        digest.update(source.name.encode() + source.read_bytes())
    digest.update(repr((_FLAGS, platform.machine(), _identity_of(compiler))).encode())
    folder = engine_folder()
    library = folder / f"trampolines-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    if compiler is None:
        raise BuildError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(library.with_suffix(".lock")):
            if not library.exists():
                _build_once(compiler, library)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written ({error.strerror})") from error
    return library


def _build_once(compiler: Path, library: Path) -> None:
    """Build, unless that failed a moment ago. With the lock held."""
    note = library.with_suffix(".failed")
    with contextlib.suppress(OSError):
        if time.time() - note.stat().st_mtime < RETRY_S:
            raise BuildError(note.read_text())
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".trampolines-") as temporary:
        made = Path(temporary) / library.name
        parts = map(str, sorted(_SOURCES.glob("*.cpp")))
        command = (str(compiler), *_FLAGS, *parts, "-o", str(made))
        try:
            _check(_run(command, Path(temporary)), compiler)
        except BuildError as error:
            note.write_text(str(error))
            raise
        made.replace(library)
    note.unlink(missing_ok=True)
