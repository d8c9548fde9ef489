"""Begins recording, then runs the site's own sitecustomize: this one is first on PYTHONPATH.

Python imports only one module of this name at start-up. Loads no module that Python has not loaded
by itself.
"""

import _frozen_importlib
import _frozen_importlib_external
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    """Begins recording. Never raises."""
    try:
        from lanescope.collector.inject import bootstrap

        bootstrap()
    except ImportError as error:
        # A Python that is embedded in another program may have no path.
        name = sys.executable or f"Python {sys.version.partition(' ')[0]}"
        _note(f"without {name}\n")
        # As in `lanescope.collector.recorder.messages`, which is missing here.
        _say(f"not recorded: {name} has no lanescope installed ({error})")
    except Exception as error:
        _say(f"not recorded: {error}")


def _say(sentence: str) -> None:
    if sys.stderr is None:  # the program was started without it
        return
    try:
        sys.stderr.write(f"lanescope: {sentence}\n")
    except (OSError, ValueError):
        return


def _note(line: str) -> None:
    """Does the work of `lanescope.collector.session.reached`, which is missing here."""
    path = os.path.join(os.environ["LANESCOPE_RECORD"], ".reached")
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
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
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = sys.modules["sitecustomize"] = _frozen_importlib.module_from_spec(spec)
    spec.loader.exec_module(module)


if os.environ.get("LANESCOPE_RECORD"):
    _begin()
_hidden()
