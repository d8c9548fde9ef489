"""Builds a C++ library on first use and keeps it in the user's cache.

A library that a wheel brought is not built. If many processes start at once, one builds and the
others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PREBUILT = Path(__file__).parent / "prebuilt"
"""Libraries that came with the wheel, see prebuild.py."""

LIBC_FILE = "libc"
"""Beside such a library: the version of the C library that it was built with."""

COMPILER_VARIABLE = "CXX"
COMPILERS = ("c++", "g++", "clang++")

RETRY_S = 600
"""Time after a failed build before another attempt, so that not each of 64 ranks tries."""


class BuildError(Exception):
    """A library cannot be built; the message is one sentence."""


def find_prebuilt(name: str, library: str) -> Path | None:
    """Returns the library of a folder of the wheel, unless this machine's C library is too old."""
    found = PREBUILT / name / library
    try:
        needed = found.with_name(LIBC_FILE).read_text()
    except OSError:
        return None
    fits = _numbers(platform.libc_ver()[1]) >= _numbers(needed)
    return found if fits and found.exists() else None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def find_compiler() -> Path | None:
    """Finds the C++ compiler: $CXX, or the first of COMPILERS on the path."""
    for name in (os.environ.get(COMPILER_VARIABLE), *COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return Path(found)
    return None


def compiler_identity(compiler: Path | None) -> tuple[str, int, int] | None:
    """Returns path, size and time of the compiler; asking for its version would cost a process."""
    if compiler is None:
        return None
    real = compiler.resolve()
    known = real.stat()
    return str(real), known.st_size, known.st_mtime_ns


def engine_folder() -> Path:
    """Returns the folder of built libraries."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lanescope" / "engines"


def ensure_built(
    key: str,
    library: str,
    compiler: Path | None,
    make: Callable[[Path, Path], None],
    *,
    again: bool = False,
    announce: Callable[[], None] = lambda: None,
) -> Path:
    """Returns a library of the cache, built if it is not there. Raises BuildError.

    `key` covers all that the library is made of; `make` makes it, given the compiler and a folder.
    `again`: also after a recent failure; `announce` is called before a build.
    """
    folder = engine_folder()
    kept = folder / key / library
    if kept.exists():
        return kept
    if compiler is None:
        raise BuildError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    announce()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder / f"{key}.lock"):
            if not kept.exists():
                _build_once(kept, compiler, make, again)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written ({error.strerror})") from error
    return kept


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_once(
    kept: Path, compiler: Path, make: Callable[[Path, Path], None], again: bool
) -> None:
    """Builds with the lock held, unless a build failed recently."""
    folder, key = kept.parent.parent, kept.parent.name
    note = folder / f"{key}.failed"
    if not again:
        with contextlib.suppress(OSError):
            if time.time() - note.stat().st_mtime < RETRY_S:
                raise BuildError(note.read_text())
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{key}-") as temporary:
        try:
            make(compiler, Path(temporary))
        except BuildError as error:
            note.write_text(str(error))
            raise
        kept.parent.mkdir(exist_ok=True)
        Path(temporary, kept.name).replace(kept)
    note.unlink(missing_ok=True)


def run_compiler(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a compiler's command in a folder. Raises BuildError where it does not start."""
    try:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run ({error.strerror})") from error


def _environment() -> dict[str, str]:
    """Returns an environment in which the compiler is not recorded and reports in English."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LANESCOPE_")}
    return {**environment, "LC_ALL": "C"}


def check_compiled(done: subprocess.CompletedProcess[str], compiler: Path) -> None:
    """Raises BuildError with the first error of a command that failed."""
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if "error:" in line]
    detail = (lines or done.stderr.splitlines() or ["no message"])[0]
    raise BuildError(f"{compiler} failed with status {done.returncode}: {detail}")
