"""Finds errors that are lost: of threads, of tasks of pools whose result is not asked for, of
processes for which the program then waited in vain, and of backward through a graph that is gone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from lanescope.collector.format import schema
from lanescope.collector.format.marks import (
    BackwardRaised,
    GoneTensor,
    LostError,
    RemoteError,
)
from lanescope.webapp.analysis import process_exits
from lanescope.webapp.analysis.arrow_columns import marks
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.source_lines import excerpt, text_of
from lanescope.webapp.analysis.stack_frames import own_frames, own_place, short_place
from lanescope.webapp.plugins.threads.contexts import times_text
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def lost_errors(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_error`, one per rank and exception.

    Of ranks that ended by themselves, or by an error of their main thread: then what a thread or
    process had raised before. Another one may not have come to ask for the result.
    """
    found = []
    for rank, ending in process_exits.endings(run).items():
        then = "and the program goes on without it"
        if ending.how == "raised":
            then = f"and then main {ending.words}" + at_place(ending.where)
        elif ending.how != "exit":
            continue
        found += _gone_tensors(run, rank)
        found += _second_backwards(run, rank) if ending.how == "exit" else []
        lost = defaultdict(list)
        for row, mark in process_exits.error_marks(run, rank):
            if mark.of == "thread" or (ending.how == "exit" and mark.of != "process"):
                lost[mark].append(row)
        found += [_finding(run, rank, mark, several, then) for mark, several in lost.items()]
        if ending.how == "raised" and _IN_VAIN.search(ending.words):
            found += _of_processes(run, rank, then)[:1]
    return found + _of_remote_functions(run)


def _gone_tensors(run: Run, rank: int) -> list[Finding]:
    """Tensors of queues whose sender had ended: one per error."""
    found = {}
    for row in marks(run, GoneTensor.PREFIX, rank):
        mark = GoneTensor.parse(row["name"])
        if mark is None or mark in found:
            continue
        said, where = process_exits.raised_at(mark.error)
        at = at_place(where)
        title = (
            f"A tensor of a multiprocessing.Queue cannot be read: taking it out {said}{at}. The "
            "process that put it had ended, and a tensor in a queue is memory of its sender. Let "
            "the sender wait until its tensors are read, by an Event of multiprocessing that the "
            "reader sets, or send arrays of numpy, which are copied."
        )
        found[mark] = _lost(run, rank, row, title, where, {"of": "process", "times": 1})
    return list(found.values())


_SECOND = "Trying to backward through the graph a second time"
_MIN_SECOND = 3
"""So often a program catches it: not to show it, or to look for it."""


def _second_backwards(run: Run, rank: int) -> list[Finding]:
    """Passes of backward that found no graph, and whose error the program caught: one per line."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in marks(run, BackwardRaised.PREFIX, rank):
        mark = BackwardRaised.parse(row["name"])
        if mark is not None and _SECOND in mark.error:
            lines.setdefault(short_place(mark.caller), []).append(row)
    return [
        _lost(
            run,
            rank,
            rows[0],
            f"backward(){at_place(where)} failed {units.count(len(rows))} times, "
            "and the program goes on without these gradients: another backward has freed the graph "
            "that both share. Add the losses and call backward() once, detach() what they share, "
            "or pass retain_graph=True to all but the last.",
            where or None,
            {"of": "backward", "times": len(rows)},
        )
        for where, rows in lines.items()
        if len(rows) >= _MIN_SECOND
    ]


_IN_VAIN = re.compile(
    "BrokenProcessPool|DataLoader worker|EOFError|Connection(Refused|Reset)Error|BrokenPipeError"
    r"|raised (queue\.)?Empty\b|TimeoutError|[Tt]imed out"
)
"""Errors of a thread that waits for another process, or talks to it."""


def _of_processes(run: Run, rank: int, then: str) -> list[Finding]:
    """Processes that a rank started, and that failed."""
    own = process_exits.own_processes(run).get(rank)
    found = []
    for one in run.manifest["processes"]:
        failed = process_exits.failure_of(one)
        main = next((t for t in run.threads_of(rank) if t.pid == one["pid"]), None)
        thread = process_exits.crashed_thread(run, one) or main
        started = own is not None and one["parent_pid"] == own["pid"]
        if not started or not failed or thread is None:
            continue
        ops = run.events("op", rank, thread.thread, columns=["name", "stack", "step"])
        last = ops.slice(max(0, len(ops) - 1)).to_pylist()
        said, where = process_exits.exception_of(one) if one["exception"] else (failed, None)
        if last and where is None:
            where = own_place(run, rank, last[0]["stack"])
            whose = (
                "its last operator" if thread is main else f"the last of its thread {thread.name}"
            )
            said += f" ({whose} is {last[0]['name']}" + at_place(where) + ")"
        elif where is not None:
            said += f" at {where}"
        time = process_exits.alive_ns(run, one)
        found.append(
            Finding(
                kind="lost_error",
                severity="warning",
                title=f"Process {one['pid']}, which rank {rank} started, {said}, {then}. Find out "
                "what ended that process first: an error, want of memory, os._exit, or a crash.",
                rank=rank,
                thread=thread.thread,
                step=last[0]["step"] if last else None,
                time_ns=time,
                where=where,
                evidence={"of": "process", "times": 1},
                link=timeline_address(time, time, run.duration_ns),
            )
        )
    return sorted(found, key=lambda one: one.time_ns or 0)


def _of_remote_functions(run: Run) -> list[Finding]:
    """Errors of functions that a worker called by rpc_async, and that no worker got: one per
    error. Only where all workers ended by themselves: another one may not have come to wait."""
    every = [
        (row, mark)
        for row in marks(run, RemoteError.PREFIX)
        if (mark := RemoteError.parse(row["name"])) is not None
    ]
    ends = process_exits.endings(run).values()
    if not every or len(ends) < run.world_size or any(one.how != "exit" for one in ends):
        return []
    read = {mark.key for _, mark in every if mark.what == "read"}
    called = {mark.key: short_place(mark.text) for _, mark in every if mark.what == "called"}
    raised: dict[str, list[tuple[dict[str, Any], RemoteError]]] = {}
    for row, mark in every:
        if mark.what == "raised":
            raised.setdefault(mark.text, []).append((row, mark))
    found = []
    for text, several in raised.items():
        function, _, error = text.partition(": ")
        if function not in called or any(mark.key in read for _, mark in several):
            continue
        row, (said, where) = several[0][0], process_exits.raised_at(error)
        line = f" at {called[function]}" if called[function] else ""
        title = (
            f"{function}, which rpc_async calls{line}, {said}"
            + at_place(where)
            + f" on rank {row['rank']}, and its error is lost: no caller waits for the result. "
            "Keep the futures that rpc_async returns, and call wait() on each of them, or "
            "torch.futures.wait_all()."
        )
        found.append(_lost(run, row["rank"], row, title, where, {"of": "task", "times": 1}))
    return found


def _finding(
    run: Run, rank: int, mark: LostError, several: list[dict[str, Any]], then: str
) -> Finding:
    (said, where), first = process_exits.raised_at(mark.error), several[0]
    at = at_place(where)
    raised = f"{said}{at}{times_text(several)}"
    waited = _waited_at(run, rank, first) if _TAKEN.search(mark.error) else None
    title = {
        "task": f"A task of a pool {raised}, and its error is lost: the program does not ask for "
        "the result. Keep what submit(), map() or apply_async() returns, and call result() or "
        "get() on each of them, or go through the results.",
        "coroutine": f"A task of asyncio {raised}, and its error is lost: nothing awaits the task. "
        "Await it, gather it with the others, or use asyncio.TaskGroup.",
        "thread": f"A thread {raised}, {then}. "
        + (
            f"Right before, it had waited for a Condition at {waited}, and another thread had "
            "taken what it was woken for: look again after each wait, with "
            "while not ready: condition.wait(), or wait_for()."
            if waited
            else "Catch the error in the thread and hand it to the main thread, or use a pool and "
            "result()."
        ),
    }[mark.of]
    return _lost(run, rank, first, title, where, {"of": mark.of, "times": len(several)})


_TAKEN = re.compile("^(IndexError|KeyError|StopIteration|(queue.)?Empty)")
"""Errors of a thread that takes an item from something empty."""


def _waited_at(run: Run, rank: int, row: dict[str, Any]) -> str | None:
    """The line of condition.wait() that a thread left last before an error, with nothing but locks
    in between; None: it did something else."""
    columns = ["start_ns", "kind", "stack"]
    table = run.events("sync", rank, row["thread"], columns, (0, row["start_ns"]))
    rows = [one for one in table.to_pylist() if not one["kind"].startswith("lock_")]
    if not rows or rows[-1]["kind"] != schema.SyncKind.condition_wait.name:
        return None
    frames = own_frames(run, rank, rows[-1]["stack"])
    found = excerpt(run, rank, frames[0]["file"], frames[0]["line"]) if frames else None
    return None if found is None or "wait_for" in text_of(found) else found["where"]


def _lost(
    run: Run,
    rank: int,
    row: dict[str, Any],
    title: str,
    where: str | None,
    evidence: dict[str, Any],
) -> Finding:
    time = row["start_ns"]
    return finding_at(
        run,
        rank,
        row,
        kind="lost_error",
        title=title,
        where=where,
        evidence=evidence,
        link=timeline_address(time, time, run.duration_ns),
    )
