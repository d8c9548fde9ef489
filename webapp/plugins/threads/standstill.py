"""Finds processes whose threads all wait, so that none of them can wake another.

Which thread should set an event or fill a queue is unknown. But where the watchdog saw all threads
at rest, and nothing was recorded from then to the end, what each of them waited for is the cause.
That takes a rest of `--hang-timeout`; or of seconds, where each thread waits for another one: then
nothing from outside can wake them. Where somebody ended such a rest by Ctrl-C, it is an error, and
what the program recorded afterwards does not count: that is its way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanescope.collector.format import schema
from lanescope.collector.format.names import FORKED_LOCK, UNREAD_OUTPUT
from lanescope.webapp.analysis.findings import Finding, Severity
from lanescope.webapp.analysis.incomplete_collectives import incomplete_collectives
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.analysis.process_exits import (
    alive_ns,
    endings,
    exception_of,
    failed_task,
    raised_beside,
)
from lanescope.webapp.analysis.rank_state import NO_PROGRESS, at_work, dumps
from lanescope.webapp.analysis.stack_frames import (
    frame_text,
    frames_of,
    own_place,
    short_place,
)
from lanescope.webapp.plugins.threads.endless import A_READER, READ_FIRST, feeding, in_pool
from lanescope.webapp.plugins.threads.waiting import ended_bringer
from lanescope.webapp.runs.run import Run

_MAX_NAMED = 4
"""Threads named in the sentence; the evidence has all."""

_LOOK_NS = 5_000_000_000
"""A killed process is known to have been there when its watchdog last looked: up to so long ago."""

INTERRUPT = "interrupt"
"""Reason of a dump of a rest that Ctrl-C ended."""

_LAST = 10
"""The link shows the last of so many parts of the run."""

_SEVERITIES: dict[str, Severity] = {"abort": "error", "stopped": "info", "killed": "info"}
"""By how the process ended. A server that waits for requests is at rest as well until somebody
stops it: only what its own watchdog ended is known to have waited for too long. Where each thread
waits for another one, or the only one for what a thread brought that has ended, it is more than
that: a warning, as a signal's handler might have woken them, and an error where one has raised."""

_OF_LOOP = "a future of asyncio"
_TASKS = "the tasks of a queue"

_BROUGHT_BY_THREADS = frozenset(
    {
        "a condition",
        "a condition or event",
        _OF_LOOP,
        "a lock",
        "a semaphore",
        "an event",
        "an item of a queue",
        "queue.get",  # of recordings before "an item of a queue" stood for both ways to see it
        "queue.put",
        "room in a queue",
        "the end of a thread",
        "the others of a barrier",
        "the result of a future",
        UNREAD_OUTPUT,
        _TASKS,
    }
)
"""What only a thread of the same process can bring, in the words of the watchdog."""

_OWN = "a lock that it holds itself"
_ITEM = "an item of another process's queue"

_BROUGHT_BY_PROCESSES = frozenset({"another process", "the end of another process", A_READER})


def standstill(run: Run, rank: int, left: Mapping[str, str]) -> list[Finding]:
    """Returns at most one finding of kind `deadlock`: what all threads of the rank's process waited
    for.

    `left`: threads that wait for a lock of a thread that has ended, and a sentence about that one;
    under "" about the only such lock of the process.
    """
    severity = _SEVERITIES.get(endings(run)[rank].how)
    rows = [row for row in dumps(run, rank) if row["reason"] != "signal"]
    if severity is None or not rows or incomplete_collectives(run):  # these are hangs
        return []
    # Once its main thread was interrupted, the others may still wait.
    rows = [row for row in rows if row["reason"] == INTERRUPT] or rows
    rows = [row for row in rows if row["time_ns"] == rows[-1]["time_ns"]]
    rows = list({row["thread"]: row for row in rows}.values())  # Ctrl-C may come again
    interrupted = rows[0]["reason"] == INTERRUPT
    if any(row["collective"] or at_work(row) for row in rows):
        return []
    pid = rows[0]["pid"]
    children = _children(run, rank, pid, rows[0]["time_ns"]) or feeding(run, rank, rows)
    dead = _died(run, pid, rows)
    closed = _closed(rows, children, dead=bool(dead))
    if rows[0]["reason"] not in NO_PROGRESS and not closed:
        return []
    since = max((t.end_ns for t in run.threads_of(rank) if t.pid == pid), default=0)
    if interrupted:
        severity, since = "error", rows[0]["time_ns"] - rows[0]["duration_ns"]
    elif since > rows[0]["time_ns"]:  # it went on
        return []
    raised = raised_beside(run, rank)
    names = {t.thread: t.name for t in run.threads_of(rank)}
    left_by = (ended_bringer(run, rank, row, names) for row in rows * closed)
    gone = next(filter(None, left_by), "")
    waits = len(rows) > 1 or _blocks_loop(run, rank, rows)
    if severity == "info" and closed and (raised or gone or waits):
        severity = "error" if raised else "warning"
    main = {t.thread for t in run.threads_of(rank) if t.kind == schema.ThreadKind.main.name}
    rows.sort(key=lambda row: (row["thread"] not in main, row["thread"]))
    rows += children
    waiting = [_waiting(run, rank, row, names, pid) for row in rows]
    advice = _left_locked(waiting, left) or _own_lock(waiting)
    advice = advice or _advice(run, rank, rows, dead=bool(dead))
    loop = any(row["waiting"] == _OF_LOOP for row in rows)
    task = failed_task(run, rank) if loop and not raised else ""
    if task:
        advice = _AWAIT
    elif gone and waiting[0]["waits_for"] == "an item of a queue":
        advice = "Let it put an end mark as it ends, in a finally, and end the loop at that mark."
    more = dead + (raised or gone) + task + "; Ctrl-C ended it" * interrupted
    return [_finding(run, rank, severity, since, waiting, more, advice, rows[0]["duration_ns"])]


def _finding(
    run: Run,
    rank: int,
    severity: Severity,
    since: int,
    waiting: list[dict[str, Any]],
    more: str,
    advice: str,
    idle_ns: int,
) -> Finding:
    known = (FORKED_LOCK, A_READER)
    own = [one for one in waiting if one["where"] or one["waits_for"] in known] or waiting[:1]
    # A thread of a library alone may well wait for ever; who joins waits for what others do.
    rest = (one for one in own if not one["waits_for"].startswith("the end of ") and one["where"])
    first = next(rest, own[0])
    return Finding(
        kind="deadlock",
        severity=severity,
        confidence="likely" if severity == "warning" else "certain",
        title=f"{_lead(severity, alone=len(waiting) == 1)}: {_waits(own)}{more}. {advice}",
        rank=rank,
        thread=first["thread"],
        step=None,
        time_ns=since,
        where=first["where"],
        evidence={"threads": waiting, "idle_ns": idle_ns, "advice": advice},
        link=timeline_address(
            since - run.duration_ns // _LAST,
            since,
            run.duration_ns,
            at=(thread_lane(rank, first["thread"]), since),
        ),
    )


def _lead(severity: Severity, *, alone: bool) -> str:
    """Begins the sentence. Servers that wait for requests are not deadlocked."""
    lead = f"{'the only Python' if alone else 'every'} thread is blocked"
    return f"Deadlock: {lead}" if severity == "error" else lead[0].upper() + lead[1:]


def _own_lock(waiting: list[dict[str, Any]]) -> str:
    """Advice where a thread waits for a lock that it holds, as the only thread must that waits for
    one, and says so there."""
    if [one["waits_for"] for one in waiting] == ["a lock"]:
        waiting[0]["waits_for"] = _OWN
    if all(one["waits_for"] != _OWN for one in waiting):
        return ""
    return "Release it before what leads here is called, or use threading.RLock."


def _left_locked(waiting: list[dict[str, Any]], left: Mapping[str, str]) -> str:
    """Names the thread that left a lock locked for which another one waits, and says what to do."""
    found = []
    for one in waiting:
        if one["thread"] in left:
            one["waits_for"] = "a lock"  # the thread of that number is another one by now
        if one["waits_for"] == "a lock":
            found.append(left.get(one["thread"]) or left.get("", ""))
    sentence = next(filter(None, found), "")
    return f"{sentence} {_RELEASE}" if sentence else ""


def _waits(threads: list[dict[str, Any]]) -> str:
    """Says what each thread waits for, of `_MAX_NAMED` of them."""
    said = [
        f"{one['name']} waits for {one['waits_for']}" + (f" at {one['where']}" * bool(one["where"]))
        for one in threads[:_MAX_NAMED]
    ]
    more = f"; and {len(threads) - _MAX_NAMED} more" if len(threads) > _MAX_NAMED else ""
    return "; ".join(said) + more


def _closed(
    rows: list[dict[str, Any]], children: list[dict[str, Any]], *, dead: bool = False
) -> bool:
    """Whether each thread waits for another one, of its process or of one that that started."""
    forked = any(row["waiting"] == FORKED_LOCK for row in rows)
    brought = _BROUGHT_BY_THREADS | (_BROUGHT_BY_PROCESSES if children or forked else frozenset())
    if dead:  # "a connection": a thread of torch that hands out shared memory
        brought |= {_ITEM, "a connection"}
    # Who waits for its processes puts nothing into their queues, and the others of them wait too.
    put = {_ITEM} if any(row["waiting"] in _BROUGHT_BY_PROCESSES for row in rows) else set()
    return all(
        row["waiting"] in brought or row["waiting"].startswith("a lock that ")
        for row in (*rows, *(one for one in children if one["waiting"] not in put))
    )


def _died(run: Run, pid: int, rows: list[dict[str, Any]]) -> str:
    """Says which process ended that should put the item, or bring the result of a pool, for which a
    thread waits; empty without one. For an item all that the process started must have ended."""
    pool = in_pool(run, rows)
    if not pool and not any(row["waiting"] == _ITEM for row in rows):
        return ""
    began = rows[0]["time_ns"] - rows[0]["duration_ns"]
    started = [one for one in run.manifest["processes"] if one["parent_pid"] == pid]
    ended = [one for one in started if one["closed"] and alive_ns(run, one) <= began + _LOOK_NS]
    gone = [
        one
        for one in started
        if not one["closed"] and alive_ns(run, one) + _LOOK_NS < rows[0]["time_ns"]
    ]
    raised = [one for one in ended if one["exception"]]
    all_ended = len(ended) + len(gone) == len(started)
    if not gone if pool else not (all_ended and (gone or raised)):
        return ""
    if gone:
        return f"; process {gone[0]['pid']}, which it started, was killed, or left by os._exit"
    said, place = exception_of(raised[0])
    at = f" ({place})" if place else ""
    return f"; process {raised[0]['pid']}, which it started, {said}{at}"


def _children(run: Run, rank: int, pid: int, seen: int) -> list[dict[str, Any]]:
    """What the main threads of processes that it started (data-loader workers) waited for; nothing
    if one of those that were there at `seen` may have been at work."""
    there = {
        one["pid"]
        for one in run.manifest["processes"]
        if alive_ns(run, one) + _LOOK_NS * (not one["closed"]) >= seen
    }
    mains = {
        t.thread
        for t in run.threads_of(rank)
        if t.kind == "main" and t.pid != pid and t.pid in there
    }
    last = {
        row["thread"]: row
        for row in run.events("stall", rank).to_pylist()
        if row["thread"] in mains and row["reason"] != "signal"
    }
    active = any(row["collective"] or at_work(row) for row in last.values())
    rest = mains == last.keys() and not active
    return [last[thread] for thread in sorted(last)] if rest else []


def _waiting(
    run: Run, rank: int, row: dict[str, Any], names: dict[str, str], pid: int
) -> dict[str, Any]:
    name = names.get(row["thread"], row["name"])
    waits_for = row["waiting"] or "a call that LaneScope does not record"
    if row["owner"] in names and "that" not in waits_for:
        waits_for = waits_for.replace("a thread", names[row["owner"]])
    if row["owner"] == row["thread"] and waits_for.startswith("a lock that "):
        waits_for = _OWN
    return {
        "thread": row["thread"],
        "name": name if row["pid"] == pid else f"{name} of process {row['pid']}",
        "waits_for": waits_for,
        "where": own_place(run, rank, row["stack"]),
        "stack": [frame_text(f) for f in frames_of(run, rank, row["stack"])],
    }


_LOOP = ("base_events.py", "run_forever")
"""What the thread of a loop of asyncio runs."""


def _callers(run: Run, rank: int, row: dict[str, Any]) -> set[tuple[str, str]]:
    """Files, without folders, and functions of the stack of a row."""
    frames = frames_of(run, rank, row["stack"])
    return {(short_place(frame["file"]), frame["function"]) for frame in frames}


def _blocks_loop(run: Run, rank: int, rows: list[dict[str, Any]]) -> bool:
    """Whether a loop of asyncio waits for a result without await: it runs no handler meanwhile."""
    found = (_callers(run, rank, row) for row in rows if row["waiting"] != _OF_LOOP)
    return any({_LOOP, ("_base.py", "result")} <= callers for callers in found)


_AWAIT = (
    "Nothing awaits that task, so its error is not seen, and what it should bring never comes: run "
    "both in asyncio.TaskGroup, or put an end mark into the queue in its finally."
)

_RELEASE = "Hold the lock with `with lock:`, which releases it where the thread returns or raises."

_FOLLOW = "Follow what each thread waits for: what should release, put or set is blocked or gone."

_ADVICE = {
    "a condition": "A notification that comes before wait() is lost: use wait_for(predicate).",
    "a semaphore": "Release it as often as it is acquired, also where a thread returns early "
    "or raises: `with semaphore:` does so.",
    "the result of a future": "Set each future, also where an item is left out or raises.",
    "a lock": "Release a lock before you wait for a thread that needs it (join, get, result).",
    "room in a queue": "Take items before you join who puts them, or give the queue room for all.",
    UNREAD_OUTPUT: "Read it before wait(), or call communicate(): a full pipe blocks its writer.",
    "the others of a barrier": "Make the barrier for as many threads as come to it, each as often.",
}
"""What to do, by what a thread waits for."""


def _advice(run: Run, rank: int, rows: list[dict[str, Any]], *, dead: bool) -> str:
    if dead and in_pool(run, rows):
        return (
            "A pool of multiprocessing does not notice that a worker was killed, by want of memory "
            "say: concurrent.futures.ProcessPoolExecutor raises BrokenProcessPool."
        )
    if any(row["waiting"] == A_READER for row in rows):
        return READ_FIRST
    if any(
        row["waiting"] == FORKED_LOCK
        or (row["pid"] != rows[0]["pid"] and row["waiting"] == "a lock")
        for row in rows
    ):
        return (
            "Start processes before threads, or with spawn: a forked process has only the thread "
            "that forked it, and locks of the other threads stay locked in it."
        )
    if {_TASKS, "an item of a queue"} <= {row["waiting"] for row in rows}:
        return (
            "Call task_done() for each item that get() returned, also where the work on it is "
            "skipped or raises (try, finally): join() waits for as many calls as there were items."
        )
    for row in rows:
        callers = _callers(run, rank, row)
        if row["waiting"] == _OF_LOOP:
            return (
                "Find the task that should set the future or event, or put the item: every task of "
                "the loop waits as well, or has ended. Another thread wakes the loop only by "
                "loop.call_soon_threadsafe."
            )
        if "future" not in row["waiting"] and ("_base.py", "result") not in callers:
            continue
        if ("thread.py", "_worker") in callers:
            return (
                "Give the inner tasks a pool of their own: a task waits for another one, and all "
                "threads of the pool may run such tasks."
            )
        if _LOOP in callers:
            return (
                "Await the result (asyncio.wrap_future): a coroutine that waits without await "
                "blocks its loop, so the awaited task cannot run."
            )
    if len(rows) == 1 and rows[0]["waiting"] not in (UNREAD_OUTPUT, "a condition"):
        return (
            "No other thread runs: start the one that should release, put, set or send before the "
            "wait, or wait with a timeout."
        )
    return next((_ADVICE[one["waiting"]] for one in rows if one["waiting"] in _ADVICE), _FOLLOW)
