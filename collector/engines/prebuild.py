"""Builds libraries to put into a wheel: an engine per version of torch, and the trampolines.

    python -m lanescope.collector.engines.prebuild INTO TORCH...

INTO is the folder to fill, each TORCH the folder of a torch package. `make wheel` calls it.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .build import LIBRARY, compile_library, prebuilt_name, torch_in
from .build_trampolines import TRAMPOLINES_FILE, compile_trampolines, trampolines_name
from .built_libraries import LIBC_FILE, BuildError, find_compiler


def prebuild(into: Path, torch_folder: Path) -> Path:
    """Builds the engine for the torch in a folder; returns its path below `into`.

    Raises BuildError.
    """
    torch = torch_in(torch_folder.resolve())  # the compiler runs in another folder
    return _put(into / prebuilt_name(torch), LIBRARY, partial(compile_library, torch))


def _put(folder: Path, library: str, make: Callable[[Path, Path], None]) -> Path:
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no C++ compiler")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lanescope-engine-") as temporary:
        make(compiler, Path(temporary))
        (folder / library).write_bytes((Path(temporary) / library).read_bytes())
    (folder / LIBC_FILE).write_text(platform.libc_ver()[1])
    return folder / library


def main(arguments: list[str]) -> int:
    """Builds for each torch, and prints sizes."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    into, *folders = map(Path, arguments)
    hooks = partial(_put, into / trampolines_name(), TRAMPOLINES_FILE, compile_trampolines)
    for build in (hooks, *(partial(prebuild, into, folder) for folder in folders)):
        try:
            library = build()
        except BuildError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{library.parent.name}: {library.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
