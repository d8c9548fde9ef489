"""Builds the native engine on first use, once per version of torch.

A wheel may bring engines for some versions of torch (`make wheel`); these are not built. Others are
in the user's cache under a key of all their inputs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import platform
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from .journal_layout import layout_header

_HERE = str(Path(__file__).parent)
SOURCES = Path(_HERE, "observer")
TRIMMED = Path(__file__).parent / "trimmed_headers"
"""Short headers that stand before torch's own of the same names: a third less to compile."""

LIBRARY = "observer.so"
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
    torch = find_torch()
    brought = find_prebuilt(prebuilt_name(torch), LIBRARY) if PREBUILT.is_dir() else None
    if brought is not None:
        return brought
    number = torch.version.split()[0]

    def say() -> None:
        if announce is not None:
            announce(f"building the native engine for torch {number}, this once")

    return cached_library(torch, again=again, announce=say, advance=advance)


def cached_library(
    torch: Torch,
    *,
    again: bool = False,
    announce: Callable[[], None] = lambda: None,
    advance: Callable[[int, int], None] | None = None,
) -> Path:
    """Returns the engine's library for a torch in the user's cache; see `ensure`."""
    compiler = find_compiler()
    make = partial(compile_library, torch, advance=advance)
    key = _named(torch, torch.version, platform.libc_ver(), compiler_identity(compiler))
    return ensure_built(key, LIBRARY, compiler, make, again=again, announce=announce)


def find_torch() -> Torch:
    """Finds the torch that this interpreter would import. Raises BuildError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NoTorchError("torch is not installed")
    return torch_in(Path(spec.origin).parent)


def torch_in(folder: Path) -> Torch:
    """Returns the torch in its package's folder. Raises BuildError."""
    folder = folder.resolve()  # the compiler runs in another one
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


def prebuilt_name(torch: Torch) -> str:
    """Returns the folder of the wheel's engine for a torch.

    Builds of one version for CPUs and for GPUs have the same classes, so they share an engine.
    """
    number, _, source = torch.version.partition(" ")
    return _named(torch, f"{number.partition('+')[0]} {source}")


def _named(torch: Torch, version: str, *more: object) -> str:
    digest = hashlib.sha256(layout_header().encode())
    # Each recorded process does this; pathlib would take three times as long.
    for folder, _, names in (one for root in (SOURCES, TRIMMED) for one in sorted(os.walk(root))):
        for name in sorted(name for name in names if name.endswith((".cpp", ".h"))):
            with open(f"{folder}{os.sep}{name}", "rb", buffering=0) as file:
                digest.update(f"{folder.removeprefix(_HERE)}/{name}".encode() + file.read())
    built = (torch.new_abi, torch.distributed, FLAGS, _KERNELS, LIBRARIES, platform.machine())
    digest.update(repr((version, *built, *more)).encode())
    return f"torch-{version.split()[0]}-{digest.hexdigest()[:16]}"


def compile_library(
    torch: Torch,
    compiler: Path,
    into: Path,
    *,
    advance: Callable[[int, int], None] | None = None,
) -> None:
    """Compiles LIBRARY in the folder `into`; for `advance` see `ensure`. Raises BuildError."""
    commands = compile_commands(torch, compiler, into)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        running = [pool.submit(_compiled, command, into) for command in commands]
        for number, future in enumerate(as_completed(running), 1):
            check_compiled(future.result(), compiler)
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
    check_compiled(run_compiler(link, into), compiler)


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
    done = run_compiler(command, folder)
    if done.returncode != 0:
        done = run_compiler(tuple(word for word in command if word != _TRIMMED_FLAG), folder)
    return done
