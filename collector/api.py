"""The in-code interface: start and stop a recording, add marks, phases, values and steps."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .compaction import manifest
from .format.options import RUN_VARIABLE, SUPERVISOR_VARIABLE, Options, default_run
from .format.record_kinds import PhaseKind
from .journal.memory_limit import check_buffer, resident_bytes
from .recorder.messages import say
from .recorder.versions import unsupported

if TYPE_CHECKING:
    from .session.session import Session

_session: Session | None = None
"""The active recording. A process has one dispatcher, hence one recording."""


def active() -> Session | None:
    """Returns the active recording, if any."""
    return _session


def start(run: str | os.PathLike[str] | None = None, **settings: Any) -> None:
    """Starts recording this process into the folder `run`, until `stop`.

    Without `run` the folder is `runs/<date>-<time>`, and its name is printed. `settings` are those
    of `lanescope record`: level, stacks, stack_depth, include, `hang_timeout="5m"`,
    `min_duration="1ms"`, `keep_last="64MB"`, `steps="10:20"`. An active recording (the program
    runs under `lanescope record`) continues unchanged. Raises ValueError for an invalid setting,
    TypeError for an unknown one.
    """
    global _session
    if _session is not None:
        return
    options = Options.of(**settings)
    check_buffer(options.keep_last_bytes)
    torch = importlib.import_module("torch")  # else its memory would count as the recorder's
    reason = unsupported(torch)
    if reason is not None:
        say(f"this process is not recorded: {reason}")
        return
    if run is None:
        run = default_run()
        say(f"recording into {run}")
    before = resident_bytes()
    from .session.session import Session

    folder = Path(run).absolute()
    session = Session(folder, options, before)
    try:
        manifest.create(folder, options, sys.argv, world_size=1)
    except OSError as error:
        session.recorder.warn(f"cannot write to {run} ({error.strerror}); nothing is recorded")
        return
    if _is_another_run(folder):
        say(
            f"{run} holds a finished recording, to which this process is added; to keep them apart "
            "choose another folder, or remove that one first"
        )
    try:
        session.start()
    except Exception:
        session.stop()  # removes the hooks that were installed so far
        raise
    _session = session
    atexit.register(stop)


def _is_another_run(folder: Path) -> bool:
    """Returns True if the folder holds a run that ended before this process or its job started."""
    joins = os.environ.get(SUPERVISOR_VARIABLE) is not None
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    try:
        found = manifest.load_manifest(folder)
    except (OSError, ValueError):
        return False
    known = {process["pid"] for process in found["processes"]}
    return bool(found["complete"]) and os.getpid() not in known and not joins and not again


def stop() -> None:
    """Stops the recording of `start` and converts it to Parquet. Does nothing without one."""
    global _session
    session, _session = _session, None
    if session is None:
        return
    atexit.unregister(stop)
    session.stop()
    if os.environ.get(SUPERVISOR_VARIABLE) is None:
        from .session.launch import finish_apart

        finish_apart(session.recorder)


@contextlib.contextmanager
def record(run: str | os.PathLike[str] | None = None, **settings: Any) -> Iterator[None]:
    """Records the block; see `start`. Within an active recording the block is part of it."""
    if _session is not None:
        yield
        return
    start(run, **settings)
    try:
        yield
    finally:
        stop()


def start_from_environment() -> None:
    """Starts recording if LANESCOPE_RECORD names a run."""
    global _session
    run = os.environ.get(RUN_VARIABLE)
    if not run or _session is not None:
        return
    start(run, **vars(Options.from_environment()))


def mark(name: str) -> None:
    """Records an instant on the calling thread's lane."""
    if (session := _session) is not None:
        with session.recorder.contain_errors():
            session.recorder.mark(name)


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Records the block as an interval on the calling thread's lane.

    A name of one of the kinds (forward, backward, optimizer, data, evaluation) has that kind:
    `phase("backward")` counts for the overlap of backward.
    """
    session = _session
    if session is None:
        yield
        return
    recorder = session.recorder
    kind = PhaseKind.__members__.get(name, PhaseKind.user)
    depth: int | None = None
    with recorder.contain_errors():
        depth = recorder.begin_phase(name, PhaseKind.user if kind is PhaseKind.mark else kind)
    try:
        yield
    finally:
        if depth is not None:
            with recorder.contain_errors():
                recorder.end_phase(depth)


def value(name: str, number: float) -> None:
    """Records a number of a series, with the current time and step."""
    if (session := _session) is not None:
        with session.recorder.contain_errors():
            session.recorder.value(name, float(number))


def step() -> None:
    """Ends a training step. From the first call on, only these calls end steps."""
    if (session := _session) is not None and session.optimizers is not None:
        with session.recorder.contain_errors():
            session.optimizers.mark_step()
