"""Builds libraries to put into a wheel: an engine per version of torch, and the trampolines.

    python -m lanescope.collector.engines.prebuild INTO TORCH...

INTO is the folder to fill, each TORCH the folder of a torch package. `make wheel` calls it.
"""

from __future__ import annotations

import platform
import shutil
import sys
from pathlib import Path

from .build import cached_library, prebuilt_name, torch_in
from .build_trampolines import ensure_trampolines, trampolines_name
from .built_libraries import LIBC_FILE, BuildError


def prebuild(into: Path, torch_folder: Path) -> Path:
    """Puts the engine for the torch in a folder below `into`; returns its path.

    What the user's cache has is not built again. Raises BuildError.
    """
    torch = torch_in(torch_folder)
    return _put(into / prebuilt_name(torch), cached_library(torch, again=True))


def _put(folder: Path, library: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIBC_FILE).write_text(platform.libc_ver()[1])
    return Path(shutil.copy(library, folder))


def main(arguments: list[str]) -> int:
    """Builds for each torch, and prints sizes."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    into, *folders = map(Path, arguments)
    try:
        hooks = _put(into / trampolines_name(), ensure_trampolines())
        for library in (hooks, *(prebuild(into, folder) for folder in folders)):
            print(f"{library.parent.name}: {library.stat().st_size // 1000} kB")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
