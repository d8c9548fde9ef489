"""What is each rank doing where its record ends: waiting, working, gone?

Answered from all that a run may hold, best first: how the process ended, the watchdog's dumps, the
collectives and events that were open, the last event. So it also answers for processes that were
killed from outside and left nothing but their journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.process_exits import (
    Ending,
    alive_ns,
    crashed_thread,
    endings,
    own_processes,
    raised_beside,
)
from lanescope.webapp.analysis.stack_frames import called_from_program, frames_of, where_of
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

NO_PROGRESS = ("no_progress", "abort")
"""Reasons of dumps that the watchdog made because its timeout was over."""

QUIET_NS = 1_000_000_000
"""A rank that recorded an event within this time of the end of the run is at work."""

GONE_NS = 3_000_000_000
"""A rank that was not seen for so long before the end of the run was gone: its watchdog looks once
a second, and on a busy machine a little later."""

_EVENTS = ("op", "collective", "phase", "gradient", "sync", "value")

_BUSY = 0.1
"""Share of a core from which on a thread is at work."""

_COLLECTIVE = re.compile("c10d::")


@dataclass(frozen=True)
class RankState:
    """One rank at its end. Times are ns from the start of the run."""

    rank: int
    thread: str | None  # the main thread, or the one that crashed or that a dump is about
    activity: str  # in plain words
    where: str | None  # file.py:12
    since_ns: int  # last event of its main thread and of those that call collectives
    end_ns: int  # until when it is known to have been there
    ending: Ending
    stalled: bool  # its watchdog saw no progress
    working: bool  # nothing was recorded, but its main thread used the processor
    in_call: str  # "name TAB group TAB sequence" of the call that its watchdog saw it wait in

    @property
    def gave_up(self) -> bool:
        """Ended by the error of a collective that did not come about."""
        return self.ending.how == "gave up"

    @property
    def left(self) -> bool:
        """Its process ended before the others: nothing more will come of it."""
        return self.ending.how in ("raised", "exit", "left", "died")


class _States(Mapping[int, RankState]):
    """The state of every recorded rank, each found when it is asked for: of a thousand ranks few
    are, and each takes reading the events of its main thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: dict[int, RankState] = {}

    def __getitem__(self, rank: int) -> RankState:
        if rank not in self._known:
            if rank not in self._run.ranks:
                raise KeyError(rank)
            self._known[rank] = _standing(self._run, rank)
        return self._known[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._run.ranks)

    def __len__(self) -> int:
        return len(self._run.ranks)


@lru_cache(maxsize=4)
def rank_states(run: Run) -> Mapping[int, RankState]:
    """Returns the state of every recorded rank."""
    return _States(run)


def at_work(dump: Mapping[str, Any]) -> bool:
    """Returns whether a thread computed when the watchdog looked."""
    return bool((dump["cpu"] or 0) >= _BUSY)


def dumps(run: Run, rank: int) -> list[dict[str, Any]]:
    """Returns rows of the stall table of a rank's own process, in the order of the dumps.

    Rows of one dump have one `time_ns`.
    """
    process = own_processes(run).get(rank)
    rows = run.events("stall", rank)
    rows = rows.filter(pc.equal(rows["pid"], pa.scalar(process["pid"] if process else -1)))
    found: list[dict[str, Any]] = rows.sort_by([("time_ns", "ascending")]).to_pylist()
    names = {thread.thread: thread.name for thread in run.threads_of(rank)}  # as on the lanes
    return [row | {"name": names.get(row["thread"]) or row["name"]} for row in found]


def _standing(run: Run, rank: int) -> RankState:
    process, main = own_processes(run).get(rank), _main_thread(run, rank)
    since = _worked_until_ns(run, rank, main)
    ending, crashed = endings(run)[rank], _crashed_thread(run, rank)
    dump = _dump(run, rank, since) if crashed in (None, main) else None  # of another thread
    thread = crashed or ((dump["thread"] or main) if dump else main)
    doing, where = doing_in(run, rank, dump) if dump is not None else _last_seen(run, rank)
    if ending.how == "raised" or (ending.how == "gave up" and not dump):
        doing, where = ending.words, ending.where or where
    elif ending.how in ("exit", "left"):
        doing, where = "has ended", None
    elif ending.how == "died" or (ending.how in ("stopped", "killed") and not dump):
        doing = f"{_how_it_ended(run, rank, ending, since)}; {doing}"
    reason = str(dump["reason"]) if dump else ""
    stalled = reason in NO_PROGRESS
    if dump and process:
        doing += raised_beside(run, rank)
    in_call = str(dump["collective"] or "") if dump else ""
    working = dump is not None and reason == "quiet" and at_work(dump)
    return RankState(
        rank, thread, doing, where, since, _end_ns(run, rank), ending, stalled, working, in_call
    )


def _how_it_ended(run: Run, rank: int, ending: Ending, since: int) -> str:
    """In words. Missing events do not prove a death: a rank may have waited for long when it
    died, and when that was is known from its watchdog only."""
    end, over = _end_ns(run, rank), _over_ns(run)
    if not ending.words:
        quiet = over - since
        return "recorded nothing more" + (
            f" in the last {units.duration(quiet)}" if quiet > QUIET_NS else ""
        )
    silent, gone = end - _last_ns(run, rank), over - end
    said = ending.words
    if silent > QUIET_NS:
        said += f" after {units.duration(silent)} without a record"
    if gone > GONE_NS:
        said += f", last seen {units.duration(gone)} before the recording ended"
    return said


def doing_in(run: Run, rank: int, dump: Mapping[str, Any]) -> tuple[str, str | None]:
    """Returns what the thread of a dump's row did, in plain words, and file.py:12."""
    where = where_of(run, rank, dump["stack"])
    if dump["waiting"]:
        return f"{dump['name']} waits for {dump['waiting']}", where
    inner = called_from_program(frames_of(run, rank, dump["stack"]))
    if inner:
        return f"{dump['name']} is in {inner}", where
    if dump["reason"] == "signal" and dump["last_op"]:  # whether it worked then is not known
        return f"{dump['name']} did {dump['last_op']} last", where
    what = "computes in Python" if at_work(dump) else "does nothing that was recorded"
    after = f" after {dump['last_op']}" if dump["last_op"] else ""
    return f"{dump['name']} {what}{after}", where


def _main_thread(run: Run, rank: int) -> str | None:
    """Main thread of a rank's own process."""
    process = own_processes(run).get(rank)
    pid = process["pid"] if process else -1
    return next((t.thread for t in run.threads_of(rank) if t.pid == pid), None)


def _crashed_thread(run: Run, rank: int) -> str | None:
    """The thread whose signal ended a rank's own process; empty for one that recorded nothing,
    None where it is not known."""
    process = own_processes(run).get(rank)
    if process is None or "ended_thread" not in process:
        return None
    found = crashed_thread(run, process)
    return found.thread if found is not None else ""


@per_rank
def _last_seen(run: Run, rank: int) -> tuple[str, str | None]:
    """What the thread whose signal ended the process did last; else the main thread."""
    main, crashed = _main_thread(run, rank), _crashed_thread(run, rank)
    doing, where = _last_of(run, rank, crashed or main)
    if crashed in (None, main):
        return doing, where
    if not crashed:
        return f"in a thread that recorded nothing; main {doing}", where
    name = next(t.name for t in run.threads_of(rank) if t.thread == crashed)
    return f"its thread {name} {doing}", where


def _last_of(run: Run, rank: int, thread: str | None) -> tuple[str, str | None]:
    """What a thread had open, or did last; where it is, is known of an open event only."""
    found: list[tuple[bool, int, str, int | None]] = []
    for table, stacks in (("collective", True), ("op", True), ("phase", False)):
        columns = ["start_ns", "duration_ns", "name", *(["stack"] if stacks else [])]
        columns += ["depth"] if table != "collective" else []
        for piece in run.pieces(table, rank, thread, columns) if thread else ():
            rows = piece
            if table == "op":  # a collective stands in a table of its own
                rows = rows.filter(pa.array(~having(rows["name"], _COLLECTIVE.match)))
            open_rows = rows.filter(pc.is_null(rows["duration_ns"]))
            for chosen, is_open in ((rows, False), (open_rows, True)):
                for row in _latest(chosen):
                    name = f"phase {row['name']}" if table == "phase" else row["name"]
                    found.append((is_open, row["start_ns"], name, row.get("stack")))
    if not found:
        return "recorded nothing", None
    is_open, _, name, stack = max(found, key=lambda one: one[:2])
    where = where_of(run, rank, stack)
    if is_open:
        return f"is in {name}", where
    return f"did {name} last" + (f" ({where})" if where else ""), None


def _latest(rows: pa.Table) -> list[dict[str, Any]]:
    """The row that began last, the innermost of several; none where there are no rows."""
    rows = rows.filter(pc.equal(rows["start_ns"], pc.max(rows["start_ns"])))
    if "depth" in rows.column_names:
        rows = rows.sort_by("depth")
    found: list[dict[str, Any]] = rows.slice(max(0, len(rows) - 1)).to_pylist()
    return found


def _dump(run: Run, rank: int, since_ns: int) -> dict[str, Any] | None:
    """The most useful row of the rank's last dump: its main thread's, which drives it.

    None where the rank went on afterwards: it says nothing of how it stood at the end.
    """
    rows = [row for row in dumps(run, rank) if row["time_ns"] >= since_ns]
    # As a signal ends it, a process cannot say what its threads wait for and whether they work.
    rows = [row for row in rows if row["reason"] != "signal"] or rows
    return _main_row_of_last(run, rows)


def _main_row_of_last(run: Run, rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the last dump of `rows` the row of the main thread, else the first."""
    if not rows:
        return None
    dump = [row for row in rows if row["time_ns"] == rows[-1]["time_ns"]]
    mains = {t.thread for t in run.threads if t.kind == schema.ThreadKind.main.name}
    return min(
        dump,
        key=lambda row: (row["thread"] not in mains, row["name"] != "MainThread"),
    )


def meanwhile(run: Run, rank: int, begin_ns: int, end_ns: int) -> tuple[str, str | None]:
    """Returns what a rank did in a stretch of time, in words and as file.py:12, as far as its
    watchdog saw it."""
    rows = [row for row in dumps(run, rank) if begin_ns <= row["time_ns"] <= end_ns]
    last = _main_row_of_last(run, rows)
    if last is not None:
        return doing_in(run, rank, last)
    went_on = _recorded(run, rank, begin_ns, end_ns)
    return "went on recording" if went_on else "recorded nothing meanwhile", None


def _recorded(run: Run, rank: int, begin_ns: int, end_ns: int) -> bool:
    """Whether a rank began anything in a stretch of time."""
    for table in ("op", "phase", "collective"):
        rows = run.events(table, rank, columns=["start_ns"], window=(begin_ns, end_ns))
        started = rows["start_ns"].to_numpy()
        if ((started > begin_ns) & (started < end_ns)).any():
            return True
    return False


def _last_ns(run: Run, rank: int) -> int:
    """Instant of the last event of a rank's threads."""
    return max((t.end_ns for t in run.threads_of(rank)), default=0)


def _end_ns(run: Run, rank: int) -> int:
    """Until when a rank is known to have been there, by its events and by its watchdog."""
    process = own_processes(run).get(rank)
    end = max(_last_ns(run, rank), alive_ns(run, process) if process is not None else 0)
    return max(end, *(int(row["time_ns"]) for row in dumps(run, rank)), 0)


@lru_cache(maxsize=4)
def _over_ns(run: Run) -> int:
    """Until when any rank is known to have been there."""
    return max(_end_ns(run, rank) for rank in run.ranks)


def _worked_until_ns(run: Run, rank: int, main: str | None) -> int:
    """Last event of the threads that drive the rank; a timer's thread does not count as progress.

    Of a rank without events its start.
    """
    if not any(run.counts_of(rank)[table] for table in _EVENTS):
        return min((t.start_ns for t in run.threads_of(rank)), default=0)
    rows = run.events("collective", rank, columns=["thread"])
    driving = {main, *pc.unique(rows["thread"].cast(pa.string())).to_pylist()}
    return max((t.end_ns for t in run.threads_of(rank) if t.thread in driving), default=0)
