"""Finds work that daemon threads have not done as the process ends: Python stops them then. And
tasks of asyncio that are not done as their loop ends, which cancels them, or that never begin.

Known are items of a queue that hold data, and that no thread has taken. A thread that hands results
on (a prefetcher) may be stopped, as the rest is not needed; one that takes items and hands nothing
on writes, sends or saves them.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import (
    CANCELLED_TASK,
    NEVER_AWAITED,
    UNFINISHED_WORK,
)
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_threads
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import endings
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_HANDS_ON = frozenset(
    kind.name
    for kind in (
        schema.SyncKind.queue_put,
        schema.SyncKind.event_set,
        schema.SyncKind.future_set,
        schema.SyncKind.condition_notify,
        schema.SyncKind.semaphore_release,
        schema.SyncKind.callback_post,
    )
)
"""What a thread does that hands on what it made."""


def unfinished_work(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_work`, one per thread. Raises NotApplicable."""
    rows = logged(run, None, prefix=UNFINISHED_WORK)
    found = _cancelled_tasks(run) + _never_awaited(run)
    if rows.empty and not found:
        need_threads(run)
    for _, row in rows.iterrows():
        rank, (where, ordinal) = int(row["rank"]), str(row["name"]).split("/")
        thread = f"{str(row['thread']).partition('-')[0]}-{ordinal}"
        name = next((one.name for one in run.threads_of(rank) if one.thread == thread), None)
        if name is None or endings(run)[rank].how != "exit" or _hands_on(run, rank, thread):
            continue
        count, at = int(row["value"]), at_place(where)
        found.append(
            _lost(
                run,
                row,
                where,
                title=f"The process ends while daemon thread {name} is{at}, and "
                f"{units.count(count)} item{'s' * (count > 1)} of its queue "
                f"{'are' if count > 1 else 'is'} left: Python stops daemon threads, so this work "
                "is lost. Before the program ends, wait for it: queue.join() with task_done(), or "
                "put an item that ends the thread, and join() it.",
                evidence={"cause": "daemon_thread", "thread": thread, "items": count},
            )
        )
    return found


def _cancelled_tasks(run: Run) -> list[Finding]:
    """One finding per line."""
    found = []
    for _, row in logged(run, None, prefix=CANCELLED_TASK).iterrows():
        where, _, function = str(row["name"]).partition("/")
        count = int(row["value"])
        task, it = ("tasks", "they were") if count > 1 else ("task", "it was")
        found.append(
            _lost(
                run,
                row,
                where,
                confidence="likely",
                title=f"The event loop ends while {units.count(count)} {task} of {function}() "
                f"{'wait' if count > 1 else 'waits'} at {where}: {it} cancelled there, and the "
                "rest of the work is lost. Keep each task that asyncio.create_task() returns, and "
                "await it (asyncio.gather, TaskGroup) before the main coroutine returns.",
                evidence={"cause": "cancelled_task", "tasks": count},
            )
        )
    return found


def _never_awaited(run: Run) -> list[Finding]:
    """One finding per line, of processes that end as they should."""
    found = []
    for _, row in logged(run, None, prefix=NEVER_AWAITED).iterrows():
        where, _, function = str(row["name"]).partition("/")
        count = int(row["value"])
        if endings(run)[int(row["rank"])].how == "exit":
            times = f" ({units.count(count)} times)" if count > 1 else ""
            found.append(
                _lost(
                    run,
                    row,
                    where,
                    title=f"Coroutine {function}() is called{at_place(where)}{times} and never "
                    "awaited: nothing in it runs. Await it, or keep what asyncio.create_task() "
                    "returns and await that later.",
                    evidence={"cause": "never_awaited", "coroutines": count},
                )
            )
    return found


def _lost(run: Run, row: pd.Series, where: str, **facts: Any) -> Finding:
    """A finding about a value that names a line of the program."""
    rank = int(row["rank"])
    return finding_at(run, rank, row, kind="lost_work", where=where or None, **facts)


def _hands_on(run: Run, rank: int, thread: str) -> bool:
    """Whether a thread hands anything on once it has taken its first item: each sets an event as it
    begins."""
    rows = run.events("sync", rank, thread, columns=["kind", "start_ns"])
    kinds = rows["kind"].cast(pa.string())
    taken = pc.min(rows["start_ns"].filter(pc.equal(kinds, schema.SyncKind.queue_get.name)))
    later = kinds.filter(pc.greater(rows["start_ns"], taken))
    return not _HANDS_ON.isdisjoint(later.to_pylist())
