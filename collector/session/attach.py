"""Starts and ends recording in a process that runs already, through `sys.remote_exec`.

Python 3.14 and newer run a script in another process of the same version at its next safe point: a
process that is blocked in a call outside of Python runs it only when that call returns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..compaction.journal_folders import is_alive

OLDEST = (3, 14)
_TIMEOUT_S = 30.0
"""The process has so long to answer."""

_POLL_S = 0.05
STARTED = "recording"
_STOPPED = "stopped"

_SCRIPT = """\
def _lanescope():
    import sys
    try:
        if "torch" not in sys.modules:
            raise RuntimeError("it has not imported torch")
        from lanescope.collector import api
        if {stop}:
            if api.active() is None:
                raise RuntimeError("it is not being recorded")
            said = {stopped!r}
        else:
            if api.active() is not None:
                raise RuntimeError("it is being recorded already")
            api.start({run!r}, **{settings!r})
            said = {started!r} if api.active() else "recording did not start; see its output"
    except ImportError as error:
        said = f"its Python cannot import lanescope ({{error}}); install it there"
    except BaseException as error:
        said = str(error) or type(error).__name__
    with open({answer!r} + "~", "w") as file:
        file.write(said)
    import os
    os.replace({answer!r} + "~", {answer!r})
    if said == {stopped!r}:
        api.stop()
_lanescope()
del _lanescope
"""


class AttachError(Exception):
    """The reason, in one sentence, why a process cannot be attached to."""


def attach_process(
    pid: int,
    run: Path,
    settings: Mapping[str, Any],
    *,
    stop: bool = False,
    execute: Callable[[int, str], None] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> None:
    """Starts recording a process into `run`, or with `stop` ends that. Raises AttachError.

    `settings` are fields of `Options`. `execute` runs a script, given by path, in a process;
    by default `sys.remote_exec`.
    """
    run_in = execute or remote_exec()
    with tempfile.TemporaryDirectory(prefix="lanescope-attach-") as folder:
        answer, script = Path(folder, "answer"), Path(folder, "script.py")
        script.write_text(
            _SCRIPT.format(
                run=str(run.absolute()),
                settings=dict(settings),
                answer=str(answer),
                stop=stop,
                started=STARTED,
                stopped=_STOPPED,
            ),
            encoding="utf-8",
        )
        try:
            run_in(pid, str(script))
        except (OSError, RuntimeError, ValueError) as error:
            if not is_alive(pid):  # Python says so in several ways
                raise AttachError(f"there is no process {pid}") from None
            raise AttachError(
                f"process {pid} cannot be attached to ({error}); it must run this version of "
                f"Python ({sys.version.split()[0]}) and be yours, and remote debugging must be "
                "allowed in it"
            ) from None
        _await(pid, answer, timeout_s, _STOPPED if stop else STARTED)


def remote_exec() -> Callable[[int, str], None]:
    """Returns Python's function that runs a script in a process. Raises AttachError without it."""
    function: Callable[[int, str], None] | None = getattr(sys, "remote_exec", None)
    if function is None:
        raise AttachError(
            "attaching needs Python {}.{} or newer, in this command and in the process; this is "
            "{}; start the program with: lanescope record -- COMMAND".format(
                *OLDEST, sys.version.split()[0]
            )
        )
    return function


def _await(pid: int, answer: Path, timeout_s: float, expected: str) -> None:
    """Waits for the script's answer. Raises AttachError unless it is the expected one."""
    until = time.monotonic() + timeout_s
    while not answer.exists():
        if not is_alive(pid):
            raise AttachError(f"process {pid} ended")
        if time.monotonic() > until:
            raise AttachError(
                f"process {pid} has not answered within {timeout_s:.0f} s: its main thread is "
                "blocked outside of Python"
            )
        time.sleep(_POLL_S)
    said = answer.read_text(encoding="utf-8")
    if said != expected:
        raise AttachError(f"process {pid}: {said}")
