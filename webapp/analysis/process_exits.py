"""How did the process of each rank end: by itself, by a fault of its own, or by others?

Two ends leave no word of their own: SIGKILL and `os._exit`. They are distinguished by the end of
the whole job by what the others noted: a connection that was lost, or the SIGTERM by which a
launcher ends the ranks that are left, noted after the last sign of life of the one that noted
nothing. Where the launcher was killed as well, and no rank ended in order, none of them is the
reason: a rank that was killed a moment later may have lost its connections before.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.marks import LostError
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.stack_frames import short_place
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.threads import Thread

NOTES_SIGNALS_NS = 1_000_000_000
"""A process that lived for so long was watched, and would have noted SIGTERM: ns."""

LEAVING_NS = 5_000_000_000
"""When a job is stopped, ranks that have a handler of their own may end so long one after the
other."""

_NOTE_SIGNALS = ("native", "portable")
"""Engines whose processes note SIGTERM."""

_UNREDUCED = "Expected to have finished reduction in the prior iteration"
"""How DistributedDataParallel begins when a parameter got no gradient."""

_KILLED = 128 + signal.SIGKILL
"""Exit status of a launcher that was killed."""

_CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
_INTERRUPT = "KeyboardInterrupt"
_RAISED_AT = re.compile(r" ?\(([^()\s]+:[0-9]+)\)$")
_LOST = re.compile(
    r"connection (?:was )?(?:closed|reset)|broken pipe|socket closed|eof \(this error originated",
    re.IGNORECASE,
)
"""How gloo, nccl and tensorpipe, which RPC uses, say that a peer is gone."""
_OWN_FILE = re.compile(r"\[\S+:[0-9]+\] ")  # of gloo, where it noticed
_GAVE_UP = re.compile(f"timed? ?out|monitoredBarrier|{_LOST.pattern}", re.IGNORECASE)


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    how: str
    """exit; raised; gave up (by the error of a collective that did not come about); died; stopped
    (by a signal that asks it to); abort (by its watchdog); left (while the job failed, not known
    how); killed (its log just ends)."""
    words: str = ""  # what goes after "rank 1": raised ValueError: bad batch
    where: str | None = None  # file.py:12 of what was raised


_DIED = Ending("died", "died")


@lru_cache(maxsize=4)
def endings(run: Run) -> Mapping[int, Ending]:
    """Returns the ending of every recorded rank's own process."""
    processes = own_processes(run)
    lost = any(_LOST.search(p["exception"]) for p in run.manifest["processes"])
    stopped = _stopped(run)
    found = {rank: _ending(run, processes.get(rank), lost, stopped) for rank in run.ranks}
    closed = any(process["closed"] for process in processes.values())
    if run.manifest["exit_status"] == _KILLED and not closed:
        alike = [r for r, one in found.items() if one == _DIED or _LOST.search(one.words)]
        found |= dict.fromkeys(alike, Ending("killed"))
    return MappingProxyType(found)


def alive_ns(run: Run, process: schema.Process) -> int:
    """Returns until when a process is known to have been there, ns from the start of the run."""
    return process["end_ns"] + process["clock"]["offset_ns"] - run.origin_ns


@lru_cache(maxsize=4)  # asked for each rank
def asked_to_stop(run: Run) -> bool:
    """Returns whether someone stopped the job as a whole: `lanescope record` saw it, or a Ctrl-C
    came."""
    interrupted = any(p["exception"].startswith(_INTERRUPT) for p in run.manifest["processes"])
    return interrupted or any(note.startswith(schema.STOPPED) for note in run.manifest["notes"])


def reduction_unfinished(run: Run) -> bool:
    """Returns whether DistributedDataParallel ended the run: in the step before, a parameter that
    it waited for had no gradient, and so some gradients were not reduced."""
    return any(_UNREDUCED in process["exception"] for process in run.manifest["processes"])


def _ending(
    run: Run, process: schema.Process | None, lost: bool, stopped: Mapping[int, int]
) -> Ending:
    if process is None:
        return Ending("killed")
    ended, raised = process["ended"], process["exception"]
    if ended == "exception":
        if raised.startswith(_INTERRUPT):
            return Ending("stopped", "was stopped by SIGINT")
        said, where = exception_of(process)
        if gave_up(process):
            return Ending("gave up", _OWN_FILE.sub("", said).partition(". ")[0], where)
        return Ending("raised", said, where)
    if ended.startswith("signal "):
        name = ended.partition(" ")[2]
        if name in _CRASHES:
            return Ending("died", f"died of {name}")
        return Ending("stopped", f"was stopped by {name}")
    if ended == "exit" and asked_to_stop(run):
        until = max(alive_ns(run, one) for one in own_processes(run).values())
        if until - alive_ns(run, process) < LEAVING_NS:
            return Ending("stopped", "ended when the job was stopped")
    if ended or process["closed"]:
        # The job failed, and this rank may be why.
        return Ending(ended or ("left" if run.manifest["exit_status"] else "exit"))
    return _DIED if lost or _outlived(run, process, stopped) else Ending("killed")


def gave_up(process: schema.Process) -> bool:
    """Returns whether its exception is the error of a collective that did not come about."""
    return bool(_GAVE_UP.search(exception_of(process)[0]))


def left_by_a_stop(run: Run, rank: int) -> bool:
    """Returns whether a rank lost its connections because another one had been asked to end.

    A launcher asks them one after the other, and who is still in a call notices the end of a peer
    before its own turn comes.
    """
    process = own_processes(run).get(rank)
    if process is None or not _LOST.search(process["exception"]):
        return False
    last = alive_ns(run, process)
    return any(at <= last for of, at in _stopped(run).items() if of != rank)


def exception_of(process: schema.Process) -> tuple[str, str | None]:
    """Returns `raised ValueError: bad batch` and file.py:12 of what ended a process."""
    return raised_at(process["exception"])


def failure_of(process: schema.Process) -> str:
    """Returns how a process failed that another one started, as `raised ValueError: bad batch`;
    empty where it did not, or was asked to end."""
    if process["exception"]:
        return "" if process["exception"].startswith(_INTERRUPT) else exception_of(process)[0]
    name = process["ended"].removeprefix("signal ")
    if name in _CRASHES:
        return f"died of {name}"
    return "" if process["ended"] or process["closed"] else "was killed, or left by os._exit"


def crashed_thread(run: Run, process: schema.Process) -> Thread | None:
    """Returns the thread whose signal ended a process; None: not known, or it recorded nothing."""
    if "ended_thread" not in process:
        return None
    own = (t for t in run.threads_of(process["rank"]) if t.pid == process["pid"])
    found = [t for t in own if t.native_id == process["ended_thread"]]
    return found[-1] if found else None  # an earlier thread may have had the same number


def error_marks(run: Run, rank: int) -> list[tuple[dict[str, Any], LostError]]:
    """Returns the marks of exceptions that are lost, by time, each with its row: thread, step,
    start_ns."""
    found = ((row, LostError.parse(row["name"])) for row in marks(run, LostError.PREFIX, rank))
    return [(row, mark) for row, mark in found if mark is not None]


def raised_at(exception: str) -> tuple[str, str | None]:
    """Returns the same of a recorded exception."""
    found = _RAISED_AT.search(exception)
    said = f"raised {_RAISED_AT.sub('', exception).strip()}"
    return said, short_place(found[1]) if found else None


def raised_beside(run: Run, rank: int) -> str:
    """Returns what a thread raised without ending its process, as the end of a sentence; or ""."""
    process = own_processes(run).get(rank)
    if process is None:
        return ""
    raised = process["exception"]
    if not raised or process["ended"] == "exception":
        errors = [error for _, error in error_marks(run, rank) if error.of == "thread"]
        if not errors:
            return ""
        raised = errors[-1].error
    said, place = raised_at(raised)
    return f"; a thread of it {said}" + (f" ({place})" if place else "")


def failed_task(run: Run, rank: int) -> str:
    """Returns what a task of asyncio raised and nothing awaited, as the end of a sentence; or "".

    Tasks that asyncio cancels as its loop ends are none of these.
    """
    errors = [error for _, error in error_marks(run, rank) if error.of == "coroutine"]
    said, place = raised_at(errors[0].error) if errors else ("", None)
    return f"; a task of asyncio {said}" + (f" ({place})" if place else "") if said else ""


def _outlived(run: Run, process: schema.Process, stopped: Mapping[int, int]) -> bool:
    """Whether a process that noted no signal was gone before others were asked to end."""
    last = alive_ns(run, process)
    lived = process["end_ns"] - process["start_ns"]
    would_note = process["engine"] in _NOTE_SIGNALS and lived > NOTES_SIGNALS_NS
    first = min(stopped.values(), default=None)
    return would_note and first is not None and last + run.clock_uncertainty_ns < first


@lru_cache(maxsize=4)
def _stopped(run: Run) -> Mapping[int, int]:
    """When the ranks that noted SIGTERM did so."""
    noted = {
        rank: at
        for rank, one in own_processes(run).items()
        if rank in run.ranks and (at := _stopped_ns(run, one)) is not None
    }
    return MappingProxyType(noted)


def _stopped_ns(run: Run, process: schema.Process) -> int | None:
    """When a process noted SIGTERM; None: it did not."""
    rows = run.events("stall", process["rank"], columns=["time_ns", "pid", "reason"])
    own = pc.equal(rows["pid"], pa.scalar(process["pid"]))
    asked = pc.equal(rows["reason"].cast(pa.string()), "signal")
    found: int | None = pc.max(rows.filter(pc.and_(own, asked))["time_ns"]).as_py()
    return found


@lru_cache(maxsize=4)
def attempts(run: Run) -> Mapping[int, tuple[schema.Process, ...]]:
    """Returns per recorded rank its own processes, those that it started left out, one per attempt.

    Each that made collectives; or that no other process of the rank started, and that started none
    that did, as a launcher does; and that began when the one before it had ended. Without any such
    the first that is listed. A rank without any has none.
    """
    found: dict[int, tuple[schema.Process, ...]] = {}
    for process in run.manifest["processes"]:
        if process["role"] == "rank":
            found[process["rank"]] = (*found.get(process["rank"], ()), process)
    return MappingProxyType(
        {rank: _one_by_one(run, rank, processes) for rank, processes in found.items()}
    )


def own_processes(run: Run) -> dict[int, schema.Process]:
    """Returns the own process of each rank, in its last attempt. Ranks without one are left out:
    only processes that they started were recorded."""
    return {rank: processes[-1] for rank, processes in attempts(run).items()}


def of_last_attempt(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of a frame with `rank` and `thread` that are not of an attempt that was
    given up."""
    earlier = [
        (rank, process["pid"])
        for rank, processes in attempts(run).items()
        for process in processes[:-1]
    ]
    if not earlier or frame.empty:  # of no rows pandas makes no columns of parts
        return frame
    pids = frame["thread"].astype(str).str.split("-", n=1).str[0].astype("int64")
    rows = pd.MultiIndex.from_arrays([frame["rank"], pids])
    return frame[~rows.isin(earlier)]


def _one_by_one(
    run: Run, rank: int, processes: tuple[schema.Process, ...]
) -> tuple[schema.Process, ...]:
    if len(processes) == 1 or rank not in run.ranks:
        return processes[:1]
    threads = pc.unique(run.events("collective", rank, columns=["thread"])["thread"])
    called = {int(one.partition("-")[0]) for one in threads.cast(pa.string()).to_pylist()}
    pids = {one["pid"] for one in processes}
    launchers = {one["parent_pid"] for one in processes if one["pid"] in called}
    # Where a program starts itself again by exec, all that it was has one number.
    chosen = [
        one
        for one in processes
        if one["pid"] in called or (one["parent_pid"] not in pids and one["pid"] not in launchers)
    ] or [*processes[:1]]
    chosen.sort(key=lambda one: one["start_ns"])
    found = [chosen[0]]
    for one in chosen[1:]:
        if one["start_ns"] >= found[-1]["end_ns"]:
            found.append(one)
    return tuple(found)
