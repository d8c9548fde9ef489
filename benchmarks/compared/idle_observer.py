"""What torch itself takes for announcing operators: an observer that does nothing."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lanescope.collector.engines import build, built_libraries


@contextmanager
def observed(folder: Path, wait_ns: int = 0, *, user_scopes: bool = False) -> Iterator[None]:
    """Operators are announced with inputs and outputs, as the native engine asks for them, with
    `user_scopes` what backends do for collectives too; as each begins and as it ends its thread
    computes for `wait_ns`.

    The observer is compiled into `folder` unless it is there. Raises CalledProcessError where it
    cannot be.
    """
    torch, library = build.find_torch(), folder / "idle_observer.so"
    include = torch.folder / "include"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                str(built_libraries.find_compiler()),
                *build.FLAGS,
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.new_abi)}",
                f"-isystem{include}",
                "-shared",
                str(Path(__file__).with_suffix(".cpp")),
                f"-L{torch.folder / 'lib'}",
                *build.LIBRARIES,
                "-o",
                str(made),
            ],
            check=True,
        )
        made.replace(library)  # another rank may be making it too
    observer = ctypes.CDLL(str(library))
    observer.start(ctypes.c_int64(wait_ns), ctypes.c_bool(user_scopes))
    try:
        yield
    finally:
        observer.stop()
