"""Builds the native engine on first use, once per version of torch, and caches it.

A wheel may bring engines for some versions of torch (`make wheel`); these are not built. Others are
in the user's cache under a key of all their inputs. If many processes start at once, one builds and
the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import mmap
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .journal_layout import layout_header

SOURCES = Path(__file__).parent / "observer"
TRIMMED = Path(__file__).parent / "trimmed_headers"
"""Short headers that stand before torch's own of the same names: a third less to compile."""

LIBRARY = "observer.so"
PREBUILT = Path(__file__).parent / "prebuilt"
"""Engines that came with the wheel, see prebuild.py."""

LIBC_FILE = "libc"
"""Beside such an engine: the version of the C library that it was built with."""

COMPILER_VARIABLE = "CXX"
COMPILERS = ("c++", "g++", "clang++")
_UNITS = {
    "torch": ("numerics", "operators", "storages", "collectives"),
    "plain": (".", "base", "journal", "stacks", "thread", "watchdog"),
}
"""Folders of sources compiled together, because torch's headers take nearly all of the time."""

KERNEL = "numerics/fingerprint_kernel.cpp"
_KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "generic": (),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx512ifma"),
    }
}
"""Machine -> variant of the kernel -> compiler flags; other machines get the generic variant."""

FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-DNDEBUG",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",
)
"""NDEBUG as in torch's own builds, because it changes members of some classes. No contraction, so
that every processor rounds the same sums alike. Warnings are never errors: another compiler may
have others. GCC falsely gives the one that is off for its own intrinsics and for torch's
containers, once those are inlined."""

LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch")
_NEW_ABI = re.compile(rb"_ZNK?3c10\w+NSt7__cxx1112basic_string")
"""A function of torch with a string of the new ABI; libstdc++'s own exist for both ABIs."""

_TRIMMED_FLAG = f"-isystem{TRIMMED}"

RETRY_S = 600
"""Time after a failed build before another attempt, so that not each of 64 ranks tries."""


class BuildError(Exception):
    """The engine cannot be built; the message is one sentence."""


class NoTorchError(BuildError):
    """torch is not installed."""


@dataclass(frozen=True)
class Torch:
    """The torch installation to build against."""

    folder: Path
    version: str  # with the hash of its source
    new_abi: bool  # of std::string
    distributed: bool


def ensure(
    *,
    again: bool = False,
    announce: Callable[[str], None] | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Path:
    """Returns the path of the engine's library and builds it if necessary. Raises BuildError.

    `again`: build even after a recent failure; `announce` is called before a build, `advance` in it
    with the files compiled and those in all. Does not import torch.
    """
    if sys.platform != "linux":
        raise BuildError(f"the native engine runs on Linux, this is {sys.platform}")
    torch, compiler = find_torch(), find_compiler()
    brought = _prebuilt(torch)
    if brought is not None:
        return brought
    key = _key(torch, compiler)
    folder = engine_folder()
    library = folder / key / LIBRARY
    if library.exists():
        return library
    if compiler is None:
        raise BuildError(f"there is no C++ compiler ({', '.join(COMPILERS)})")
    if announce is not None:
        announce(f"building the native engine for torch {torch.version.split()[0]}, this once")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(folder / f"{key}.lock"):
            if not library.exists():
                _build_once(torch, compiler, folder, key, again, advance)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written ({error.strerror})") from error
    return library


def engine_folder() -> Path:
    """Returns the folder of built engines."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lanescope" / "engines"


def find_torch() -> Torch:
    """Finds the torch that this interpreter would import. Raises BuildError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NoTorchError("torch is not installed")
    return torch_in(Path(spec.origin).parent)


def torch_in(folder: Path) -> Torch:
    """Returns the torch in its package's folder. Raises BuildError."""
    try:
        version: dict[str, Any] = runpy.run_path(str(folder / "version.py"))
        library = folder / "lib" / "libc10.so"
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            new_abi = _NEW_ABI.search(m) is not None
    except (OSError, ValueError) as error:
        raise BuildError(f"{folder}: this torch cannot be built against ({error})") from error
    if version.get("debug"):
        raise BuildError("this torch was built for debugging, with classes of another layout")
    headers = folder / "include" / "torch" / "csrc" / "distributed" / "c10d" / "ProcessGroup.hpp"
    return Torch(
        folder=folder,
        version=f"{version['__version__']} {version.get('git_version')}",
        new_abi=new_abi,
        distributed=headers.exists(),
    )


def find_compiler() -> Path | None:
    """Finds the C++ compiler: $CXX, or the first of COMPILERS on the path."""
    for name in (os.environ.get(COMPILER_VARIABLE), *COMPILERS):
        found = shutil.which(name) if name else None
        if found:
            return Path(found)
    return None


def _key(torch: Torch, compiler: Path | None) -> str:
    """Returns the cache key of a build, which covers all inputs of the library."""
    return _named(torch, torch.version, platform.libc_ver(), _identity_of(compiler))


def prebuilt_name(torch: Torch) -> str:
    """Returns the folder of the wheel's engine for a torch.

    Builds of one version for CPUs and for GPUs have the same classes, so they share an engine.
    """
    number, _, source = torch.version.partition(" ")
    return _named(torch, f"{number.partition('+')[0]} {source}")


def _named(torch: Torch, version: str, *more: object) -> str:
    digest = hashlib.sha256(layout_header().encode())
    found = (path for folder in (SOURCES, TRIMMED) for path in folder.rglob("*"))
    for path in sorted(path for path in found if path.suffix in (".cpp", ".h")):
        digest.update(str(path.relative_to(SOURCES.parent)).encode() + path.read_bytes())
    built = (torch.new_abi, torch.distributed, FLAGS, _KERNELS, LIBRARIES, platform.machine())
    digest.update(repr((version, *built, *more)).encode())
    return f"torch-{version.split()[0]}-{digest.hexdigest()[:16]}"


def _prebuilt(torch: Torch) -> Path | None:
    """Returns the wheel's engine for a torch, unless this machine's C library is too old for it."""
    if not PREBUILT.is_dir():
        return None
    library = PREBUILT / prebuilt_name(torch) / LIBRARY
    try:
        needed = library.with_name(LIBC_FILE).read_text()
    except OSError:
        return None
    fits = _numbers(platform.libc_ver()[1]) >= _numbers(needed)
    return library if fits and library.exists() else None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _identity_of(compiler: Path | None) -> tuple[str, int, int] | None:
    """Returns path, size and time of the compiler; asking for its version would cost a process."""
    if compiler is None:
        return None
    real = compiler.resolve()
    known = real.stat()
    return str(real), known.st_size, known.st_mtime_ns


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_once(
    torch: Torch,
    compiler: Path,
    folder: Path,
    key: str,
    again: bool,
    advance: Callable[[int, int], None] | None,
) -> None:
    """Builds with the lock held, unless a build failed recently."""
    note = folder / f"{key}.failed"
    if not again:
        with contextlib.suppress(OSError):
            if time.time() - note.stat().st_mtime < RETRY_S:
                raise BuildError(note.read_text())
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{key}-") as temporary:
        made = Path(temporary)
        try:
            compile_library(torch, compiler, made, advance)
        except BuildError as error:
            note.write_text(str(error))
            raise
        (folder / key).mkdir(exist_ok=True)
        (made / LIBRARY).replace(folder / key / LIBRARY)
    note.unlink(missing_ok=True)


def compile_library(
    torch: Torch,
    compiler: Path,
    into: Path,
    advance: Callable[[int, int], None] | None = None,
) -> None:
    """Compiles LIBRARY in the folder `into`; for `advance` see `ensure`. Raises BuildError."""
    commands = compile_commands(torch, compiler, into)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        running = [pool.submit(_compiled, command, into) for command in commands]
        for number, future in enumerate(as_completed(running), 1):
            _check(future.result(), compiler)
            if advance is not None:
                advance(number, len(commands))
    objects = [command[-1] for command in commands]
    # torch is in the process when the library is loaded, so it needs no path to it.
    link = (
        str(compiler),
        "-shared",
        "-pthread",
        *objects,
        f"-L{torch.folder / 'lib'}",
        *LIBRARIES,
        "-ldl",
        "-o",
        str(into / LIBRARY),
    )
    _check(_run(link, into), compiler)


def compile_commands(torch: Torch, compiler: Path, into: Path) -> list[tuple[str, ...]]:
    """Writes generated sources to `into`; returns a command per object file, its last word."""
    (into / "layout.h").write_text(layout_header(), encoding="utf-8")
    include = torch.folder / "include"
    flags = (
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_abi)}",
        f"-DLANESCOPE_DISTRIBUTED={int(torch.distributed)}",
        f"-I{into}",
        f"-I{SOURCES}",
        _TRIMMED_FLAG,
        f"-isystem{include}",
        f"-isystem{include / 'torch' / 'csrc' / 'api' / 'include'}",
    )
    commands: list[tuple[str, ...]] = []
    for unit, folders in _UNITS.items():
        whole = into / f"{unit}.cpp"
        whole.write_text("".join(f'#include "{part}"\n' for part in _parts(folders)))
        commands.append((str(compiler), *flags, "-c", str(whole), "-o", str(into / f"{unit}.o")))
    for variant, abilities in _KERNELS.get(platform.machine(), {"generic": ()}).items():
        commands.append(
            (
                str(compiler),
                *flags,
                "-O3",
                *abilities,
                f"-DLANESCOPE_VARIANT={variant}",
                "-c",
                str(SOURCES / KERNEL),
                "-o",
                str(into / f"{variant}.o"),
            )
        )
    return commands


def _parts(folders: tuple[str, ...]) -> list[str]:
    """Returns the sources in some folders, except the kernel, relative to SOURCES."""
    found = [path for folder in folders for path in sorted((SOURCES / folder).glob("*.cpp"))]
    return [part for path in found if (part := path.relative_to(SOURCES).as_posix()) != KERNEL]


def _compiled(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Compiles a unit; with torch's own headers where the trimmed ones do not do."""
    done = _run(command, folder)
    if done.returncode != 0:
        done = _run(tuple(word for word in command if word != _TRIMMED_FLAG), folder)
    return done


def _run(command: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
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


def _check(done: subprocess.CompletedProcess[str], compiler: Path) -> None:
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if "error:" in line]
    detail = (lines or done.stderr.splitlines() or ["no message"])[0]
    raise BuildError(f"{compiler} failed with status {done.returncode}: {detail}")
