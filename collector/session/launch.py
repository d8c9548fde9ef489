"""Runs a command with recording on, and finishes the run at its end."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from ..compaction import manifest
from ..engines import build, built_libraries
from ..format.file_names import MANIFEST
from ..format.options import OPTIONS_VARIABLE, RUN_VARIABLE, SUPERVISOR_VARIABLE, Options
from ..recorder.messages import say
from ..recorder.progress import working
from ..recorder.recorder import Recorder
from . import outcome
from .reached import REACHED_FILE

STARTUP_FOLDER = Path(__file__).parents[1] / "startup"
SETTLE_S = 5.0
"""Longest wait for processes that outlive the command (data-loader workers), seconds."""

_STEPS_ASIDE = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EIO}
"""Faults of the disk, not of the path that was given: the command runs without a recording."""


class LaunchError(Exception):
    """The reason, in one sentence, why a command cannot be recorded."""


@dataclass(frozen=True)
class Ended:
    """A recorded command that ended."""

    status: int  # its exit status: 128 + signal if a signal ended it, as in a shell
    recorded: bool
    sentence: str  # about the run, or why nothing was recorded; empty where that was said before


def run_recorded(
    run: Path, options: Options, command: Sequence[str], *, quiet: bool = False
) -> Ended:
    """Runs `command`, and records all its Python processes into `run`.

    `quiet`: says nothing about building the engine. Raises LaunchError.
    """
    options = with_engine(options, quiet=quiet)
    try:
        prepare_run(run, options, command)
    except OSError as error:
        if error.errno not in _STEPS_ASIDE:
            words = f"{run} cannot be written ({error.strerror}); choose another place with -o"
            raise LaunchError(words) from error
        outcome.forget(run)
        say(f"cannot write to {run} ({error.strerror}); nothing is recorded")
        with _signals_passed_to(process := _start(command, dict(os.environ))):
            return Ended(_status(process.wait()), recorded=False, sentence="")
    try:
        process = _start(command, environment_for(run, options))
    except LaunchError:
        outcome.forget(run)
        raise
    with _signals_passed_to(process) as passed:
        follower = Follower(run)
        status = process.wait()
        follower.stop()
    status = _status(status)
    finish(run, exit_status=status, stopped=passed.name)
    recorded, sentence = outcome.conclude(run, options, command[0], status)
    return Ended(status, recorded, sentence)


def _status(returned: int) -> int:
    """Returns the exit status of a process as in a shell."""
    return 128 - returned if returned < 0 else returned


def check_free(run: Path) -> None:
    """Raises LaunchError where there is something at the place of a run."""
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise LaunchError(
            f"{run} is there already and is not empty; "
            "choose another place with -o, or remove it first"
        )


def prepare_run(run: Path, options: Options, command: Sequence[str]) -> None:
    """Makes the run's folder and manifest. Raises LaunchError where the place is taken, OSError
    where it cannot be written."""
    check_free(run)
    manifest.create(run, options, command, world_size=1)
    (run / REACHED_FILE).touch()


def with_engine(options: Options, *, quiet: bool = False) -> Options:
    """Returns the options with the engine chosen once for all processes. Raises LaunchError.

    Builds the native engine if necessary, so that ranks need not wait for each other.
    """
    if not options.native:
        return options
    try:
        with contextlib.nullcontext() if quiet else working("Building the engine") as advance:
            build.ensure(again=True, announce=None if quiet else say, advance=advance)
    except build.NoTorchError:
        return options  # the command may run with another Python than this one
    except built_libraries.BuildError as error:
        if options.engine == "native":
            raise LaunchError(f"the native engine cannot be used: {error}") from error
        say(f"recording with the portable engine: {error}")
        return replace(options, engine="portable")
    return options


def environment_for(run: Path, options: Options) -> dict[str, str]:
    """Returns the environment in which Python processes record themselves into `run`."""
    environment = dict(os.environ)
    environment[RUN_VARIABLE] = str(run.absolute())
    environment[OPTIONS_VARIABLE] = options.to_environment()
    environment[SUPERVISOR_VARIABLE] = str(os.getpid())
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP_FOLDER), *([path] if path else [])])
    return environment


class Follower:
    """Starts the process that compacts a run while it is being recorded."""

    def __init__(self, run: Path) -> None:
        # Not recorded itself, and outside the terminal's group: Ctrl-C is for the command.
        environment = {k: v for k, v in os.environ.items() if k != RUN_VARIABLE}
        self._run = run
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lanescope.collector.session.compactor_process", str(run)],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Ends the process after its current work."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def finish(run: Path, *, exit_status: int, stopped: str) -> None:
    """Turns journals into Parquet; reports failures, which readers recover from."""
    from ..compaction.compact import compact  # loads pyarrow

    if not (run / MANIFEST).exists():  # removed: do not recreate it
        return

    try:
        with working(f"Finishing {run}"):
            compact(run, wait_s=SETTLE_S, exit_status=exit_status, stopped=stopped)
    except Exception as error:  # do not lose the command's own status
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        say(f"{run} is not finished ({reason}); it opens as it is")


def finish_apart(recorder: Recorder) -> None:
    """Finishes a run without `lanescope record`, in a process of low priority."""
    if recorder.folder is None or not recorder.folder.exists():  # removed: reported already
        return
    environment = {k: v for k, v in os.environ.items() if k != RUN_VARIABLE}
    command = [sys.executable, "-m", "lanescope.collector.compaction.compact", str(recorder.run)]
    try:
        subprocess.run(command, env=environment, check=False)
    except OSError as error:
        recorder.warn(f"{recorder.run} is not finished ({error}); it opens as it is")


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        # The command may inherit further descriptors, such as those of a shell's <(...).
        return subprocess.Popen(command, env=environment, close_fds=False)
    except FileNotFoundError as error:
        what = "option" if command[0].startswith("-") else "command"
        raise LaunchError(f"{command[0]}: no such {what}") from error
    except OSError as error:
        raise LaunchError(f"{command[0]} cannot be started ({error.strerror})") from error


class _signals_passed_to:
    """Passes signals on to the command inside the context; they do not end this process.

    A terminal sends some to the whole foreground group, also to the command: these are only noted.
    """

    _OF_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
    _ENDING = (signal.SIGTERM, signal.SIGHUP)
    _OTHERS = (signal.SIGUSR1, signal.SIGUSR2)  # batch systems announce the end by them

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._before: dict[int, object] = {}
        self.name = ""  # of the received signal

    def __enter__(self) -> _signals_passed_to:
        if threading.current_thread() is threading.main_thread():
            for number in (*self._OF_TERMINAL, *self._ENDING, *self._OTHERS):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number not in self._OTHERS:
            self.name = signal.Signals(number).name
        if number not in self._OF_TERMINAL:
            self._process.send_signal(number)
