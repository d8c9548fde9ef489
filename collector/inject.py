"""Begins recording once `torch` has been imported, in unmodified programs.

Called at interpreter start-up, before torch and the program are loaded: must be cheap and must not
fail. Until torch is imported it loads no module that Python has not loaded by itself: a program may
be the first to import `threading`, from any thread.
"""

import sys
from os import environ

from .format.variables import RUN_VARIABLE
from .session.reached import ENTERED, FAILED, IMPORTED, report_reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _AfterTorch:
    """Finds torch as usual, and starts the recording once its module has been executed."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != "torch":
            return None
        others = [one for one in sys.meta_path if one is not self]
        finders = [finder for finder in others if hasattr(finder, "find_spec")]
        found = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((one for one in found if one is not None), None)
        loader = None if spec is None else spec.loader
        if loader is None:
            return spec
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            if self in sys.meta_path:  # until now: a program may ask for torch before it imports it
                sys.meta_path.remove(self)
                _start()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def bootstrap() -> None:
    """Prepares the start of recording if the environment asks for it; once per process."""
    if not environ.get(RUN_VARIABLE) or any(isinstance(f, _AfterTorch) for f in sys.meta_path):
        return
    report_reached(ENTERED)
    if "torch" in sys.modules:
        _start()
    else:
        sys.meta_path.insert(0, _AfterTorch())


def _start() -> None:
    from .recorder.messages import say

    try:
        from .api import active, start_from_environment

        start_from_environment()
        report_reached(IMPORTED if active() else FAILED)
    except Exception as error:
        report_reached(FAILED)
        say(f"this process is not recorded: {error}")
