"""First on PYTHONPATH of recorded commands: begins recording, then is the site's own file again.

Python imports one module of this name at start-up. The one that this hides is run from here.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    try:
        from lanescope.collector.inject import bootstrap
    except ImportError as error:
        sys.stderr.write(
            f"lanescope: not recorded: {sys.executable} has no lanescope installed ({error})\n"
        )
        _note(f"without {sys.executable}\n")
        return
    bootstrap()


def _note(line: str) -> None:
    """As `lanescope.collector.session.reached` does, which is not there."""
    path = os.path.join(os.environ["LANESCOPE_RECORD"], ".reached")
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _here(path: str) -> bool:
    try:
        return os.path.abspath(path or os.curdir) == _HERE
    except OSError:  # the current folder was removed, and the path is within it
        return False


def _hidden() -> None:
    elsewhere = [p for p in sys.path if not _here(p)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("LANESCOPE_RECORD"):
    with contextlib.suppress(Exception):
        _begin()
_hidden()
