"""Builds engines to put into a wheel: one per version of torch, found by name at run time.

    python -m lanescope.collector.engines.prebuild INTO TORCH...

INTO is the folder to fill, each TORCH the folder of a torch package. `make wheel` calls it.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from pathlib import Path

from .build import (
    LIBC_FILE,
    LIBRARY,
    BuildError,
    compile_library,
    find_compiler,
    prebuilt_name,
    torch_in,
)


def prebuild(into: Path, torch_folder: Path) -> Path:
    """Builds the engine for the torch in a folder; returns its path below `into`.

    Raises BuildError.
    """
    torch, compiler = torch_in(torch_folder), find_compiler()
    if compiler is None:
        raise BuildError("there is no C++ compiler")
    folder = into / prebuilt_name(torch)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lanescope-engine-") as temporary:
        compile_library(torch, compiler, Path(temporary))
        library = folder / LIBRARY
        library.write_bytes((Path(temporary) / LIBRARY).read_bytes())
    (folder / LIBC_FILE).write_text(platform.libc_ver()[1])
    return library


def main(arguments: list[str]) -> int:
    """Builds for each torch, and prints sizes."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    into, *folders = map(Path, arguments)
    for folder in folders:
        try:
            library = prebuild(into, folder)
        except BuildError as error:
            print(f"{folder}: {error}", file=sys.stderr)
            return 1
        print(f"{library.parent.name}: {library.stat().st_size // 1000} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
