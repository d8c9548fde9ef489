"""Begins recording once `torch` has been imported, in programs that know nothing of it.

Called at interpreter start-up, where neither torch nor the program has been loaded: it must be
cheap, and it must not fail.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .format.options import RUN_VARIABLE
from .session.reached import ENTERED, FAILED, IMPORTED, reached


class _AfterTorch(MetaPathFinder):
    """Finds torch as always, and starts the recording when its module has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _start()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def bootstrap() -> None:
    """Arrange for the recording to begin, if the environment asks for one. Once per process."""
    if not os.environ.get(RUN_VARIABLE) or any(isinstance(f, _AfterTorch) for f in sys.meta_path):
        return
    reached(ENTERED)
    if "torch" in sys.modules:
        _start()
    else:
        sys.meta_path.insert(0, _AfterTorch())


def _start() -> None:
    try:
        from .api import active, start_from_environment

        start_from_environment()
        reached(IMPORTED if active() else FAILED)
    except Exception as error:
        reached(FAILED)
        sys.stderr.write(f"lanescope: this process is not recorded: {error}\n")
