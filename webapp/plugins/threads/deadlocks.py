"""Finds threads that wait for each other, or are stuck in backward.

A thread waits for one thing at a time: for a lock, which the thread holds that acquired it last and
has not let go of it, or for the end of a thread. Where following who waits for whom comes round in
a circle, none of them will ever go on. Known from what was open when the log ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import FORKED_STATE, ORPHANED_LOCK
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place, thread_lane, timeline_address
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.rank_state import NO_PROGRESS, at_work, dumps
from lanescope.webapp.analysis.stack_frames import frame_text, frames_of, own_place, where_of
from lanescope.webapp.plugins.threads.endless import endless_threads, interrupted_joins
from lanescope.webapp.plugins.threads.standstill import standstill
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_ACQUIRE, _RELEASE = schema.SyncKind.lock_acquire.name, schema.SyncKind.lock_release.name
_JOIN = schema.SyncKind.thread_join.name


@dataclass(frozen=True)
class _Wait:
    """A thread that waited when the log ended; `holder` is who it waits for."""

    thread: str
    holder: str
    what: str  # "a lock", "the end of the thread"
    since_ns: int
    step: int
    stack: int | None
    held_since_ns: int | None  # None: no lock, or taken before there was a second thread
    ended: bool = False  # the holder has ended


def deadlocks(run: Run) -> list[Finding]:
    """Returns findings of kind `deadlock`."""
    return [one for rank in run.ranks for one in _of_rank(run, rank)]


@per_rank
def _of_rank(run: Run, rank: int) -> list[Finding]:
    forked = _forked(run, rank) + _without_threads(run, rank)
    locked = {thread for one in forked for thread in one.evidence["threads"]}
    known = {thread: wait for thread, wait in _waits(run, rank).items() if thread not in locked}
    waits = {thread: wait for thread, wait in known.items() if not wait.ended}
    circles = _circles(waits)
    own = [_circle(run, rank, circle) for circle in circles]
    inside = {wait.thread for circle in circles for wait in circle}
    own += [f for f in _stuck(run, rank) if f.thread not in inside]
    left = {thread: _left(run, rank, w.holder) for thread, w in known.items() if w.ended}
    gone = _gone_with_locks(run, rank) if not own else []
    if len(gone) == 1:  # where it is not known which lock a thread waits for, it is this one
        left[""] = _left(run, rank, gone[0])
    own += forked + interrupted_joins(run, rank)
    rest = standstill(run, rank, left)
    if own or any(one.severity != "info" for one in rest):
        return own or rest
    return endless_threads(run, rank) or rest


def _forked(run: Run, rank: int) -> list[Finding]:
    """Processes that wait for a lock that was held when they were forked: one per line."""
    found = []
    rows = logged(run, rank, prefix=ORPHANED_LOCK).sort_values("time_ns")
    for name, own in rows.groupby("name", sort=False, observed=True):
        where, first = str(name), own.iloc[0]
        several = own["thread"].nunique()
        at = at_place(where) + f" ({several} processes)" * (several > 1)
        time = int(first["time_ns"])
        found.append(
            finding_at(
                run,
                rank,
                first,
                kind="deadlock",
                severity="error",
                title=f"Deadlock: a forked process waits for a lock{at}, which a thread of "
                "the parent held as it forked. That thread is not in the forked process, "
                "so the lock is never released there. Start processes before threads, or with "
                "spawn.",
                where=where,
                evidence={"threads": sorted(set(own["thread"].astype("str")))},
                link=timeline_address(time, time, run.duration_ns),
            )
        )
    return found


_REST_NS = 5_000_000_000
"""An operator that rests for so long waits for something that does not come."""


def _without_threads(run: Run, rank: int) -> list[Finding]:
    """Forked processes at rest within an operator: one per line.

    The threads by which the parent computed (OpenMP) are not in a forked process, and an operator
    that is large enough to be shared with them waits for them.
    """
    forked = set(logged(run, rank, FORKED_STATE)["thread"].astype("str"))
    rows = run.events("stall", rank).sort_by([("time_ns", "ascending")]).to_pylist() * bool(forked)
    lines: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for row in {row["thread"]: row for row in rows if row["reason"] != "signal"}.values():
        waits = row["waiting"] or row["collective"] or at_work(row)
        if row["thread"] not in forked or waits or row["duration_ns"] < _REST_NS:
            continue
        columns = ["name", "start_ns", "duration_ns", "depth", "stack", "step", "thread"]
        ops = run.events("op", rank, row["thread"], columns=columns)
        opened = ops.filter(pc.is_null(ops["duration_ns"])).sort_by("depth").to_pylist()
        last = opened and pc.max(ops["start_ns"]).as_py() == opened[-1]["start_ns"]
        if last and opened[-1]["name"].startswith("aten::"):  # others may wait for anything
            where = own_place(run, rank, row["stack"]) or ""
            lines.setdefault(where, []).append((opened[-1], row))
    return [_stuck_in_fork(run, rank, where, several) for where, several in lines.items()]


def _stuck_in_fork(
    run: Run, rank: int, where: str, several: list[tuple[dict[str, Any], dict[str, Any]]]
) -> Finding:
    op, row = several[0]
    at = at_place(where) + f" ({len(several)} processes)" * (len(several) > 1)
    return finding_at(
        run,
        rank,
        op,
        kind="deadlock",
        severity="error",
        title=f"Deadlock: a forked process rests in {op['name']}{at}: it has only the thread that "
        "forked it, and the operator waits for the threads by which the parent computed before "
        "(OpenMP). Start processes with spawn, or before the first operator, or call "
        "torch.set_num_threads(1) before the fork.",
        where=where,
        evidence={
            "threads": sorted(other["thread"] for _, other in several),
            "op": op["name"],
            "idle_ns": row["duration_ns"],
            "stack": _stack(run, rank, row["stack"]),
        },
        link=timeline_address(op["start_ns"], row["time_ns"], run.duration_ns),
    )


def _left(run: Run, rank: int, holder: str) -> str:
    """Says that a thread left a lock locked, and where it was last."""
    stacks = run.events("op", rank, holder, columns=["stack"])["stack"].drop_null()
    last = own_place(run, rank, stacks[-1].as_py()) if len(stacks) else None
    at = f" (its last operator is at {last})" if last else ""
    return f"{_names(run, rank)[holder]}{at} took that lock, and ended without releasing it."


def _gone_with_locks(run: Run, rank: int) -> list[str]:
    """Threads that ended and did not release a lock: one for each of these locks."""
    if not dumps(run, rank):
        return []
    table = run.events("sync", rank, columns=["kind", "object", "thread"])
    kinds, threads = (table[name].cast(pa.string()) for name in ("kind", "thread"))
    table = table.set_column(table.column_names.index("thread"), "thread", threads)
    ended = table.filter(pc.equal(kinds, schema.SyncKind.thread_end.name))["thread"]
    chosen = pc.and_(
        pc.is_in(table["thread"], pc.unique(ended)), pc.is_in(kinds, pa.array([_ACQUIRE, _RELEASE]))
    )
    signs = pc.if_else(pc.equal(kinds.filter(chosen), _ACQUIRE), 1, -1)
    rows = table.filter(chosen).select(["thread", "object"]).append_column("held", signs)
    sums = rows.group_by(["thread", "object"]).aggregate([("held", "sum")]).to_pylist()
    return [str(row["thread"]) for row in sums if row["held_sum"] > 0]


@per_rank
def _waits(run: Run, rank: int) -> dict[str, _Wait]:
    columns = ["start_ns", "duration_ns", "kind", "peer", "object", "step", "stack", "thread"]
    table = run.events("sync", rank, columns=columns)
    kinds = table["kind"].cast(pa.string())
    waiting = pc.and_(
        pc.is_null(table["duration_ns"]), pc.is_in(kinds, pa.array([_ACQUIRE, _JOIN]))
    )
    rows = table.filter(waiting).to_pylist()
    wanted = pa.array([r["object"] for r in rows if r["kind"] == _ACQUIRE], pa.int64())
    locks = table.filter(
        pc.and_(pc.is_in(table["object"], wanted), pc.is_in(kinds, pa.array([_ACQUIRE, _RELEASE])))
    )
    known = locks.to_pylist()
    holders = _holders(known)
    recorded = {_lock(row) for row in known if row["duration_ns"] is not None}
    partial = run.manifest["options"].get("steps") is not None  # of steps left out nothing is known
    whole = not (partial or run.coverage.get("overwritten") or run.dropped)
    main = {str(t.pid): t.thread for t in run.threads_of(rank) if t.kind == "main"}
    ended = {
        row["thread"]
        for row in table.filter(pc.equal(kinds, schema.SyncKind.thread_end.name)).to_pylist()
    }
    found = {}
    for row in rows:
        lock, since = _lock(row), None
        if row["kind"] == _JOIN:
            holder, what = row["peer"], "the end of the thread"
        elif lock in holders:
            taken = holders[lock]
            holder, since, what = taken["thread"], taken["start_ns"], "a lock"
        else:
            # Locks are recorded from when there is a second thread.
            first = lock not in recorded and whole
            holder, what = main.get(lock[0]) if first else None, "a lock"
        gone = holder in ended
        if holder is not None and not (gone and what != "a lock"):
            start, step, stack = row["start_ns"], row["step"], row["stack"]
            found[row["thread"]] = _Wait(
                row["thread"], holder, what, start, step, stack, since, gone
            )
    return found


def _holders(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Who holds each lock of a process (pid, number), by the acquire that was not released."""
    held: dict[tuple[str, int], list[dict[str, Any]]] = {}
    ended = [row for row in rows if row["duration_ns"] is not None]
    for row in sorted(ended, key=lambda row: row["start_ns"] + row["duration_ns"]):
        acquired = held.setdefault(_lock(row), [])
        if row["kind"] == _ACQUIRE:
            acquired.append(row)
        elif acquired:
            acquired.pop()
    return {key: acquired[0] for key, acquired in held.items() if acquired}


def _lock(row: dict[str, Any]) -> tuple[str, int]:
    """The lock that a row is about: process and number."""
    return row["thread"].partition("-")[0], row["object"]


def _circles(waits: Mapping[str, _Wait]) -> list[list[_Wait]]:
    """Each circle once, its first wait first."""
    found = []
    seen: set[str] = set()
    for thread in waits:
        path: list[str] = []
        while thread in waits and thread not in seen:
            seen.add(thread)
            path.append(thread)
            thread = waits[thread].holder
        if thread in path:
            circle = [waits[one] for one in path[path.index(thread) :]]
            at = min(range(len(circle)), key=lambda i: circle[i].since_ns)
            found.append(circle[at:] + circle[:at])
    return found


def _circle(run: Run, rank: int, circle: list[_Wait]) -> Finding:
    names = _names(run, rank)
    said = [_said(run, rank, names, wait) for wait in circle]
    last = max(circle, key=lambda wait: wait.since_ns)
    alone = len(circle) == 1
    advice = (
        "Hold it with `with lock:`, which releases it where the code returns or raises. Where its "
        "owner must take it twice, use RLock: a Lock cannot be acquired twice by its owner."
        if alone
        else "Take these locks in the same order in all threads, and do not wait for a thread "
        "while holding a lock that it needs."
    )
    return Finding(
        kind="deadlock",
        severity="error",
        title=("Deadlock: a thread waits for itself. " if alone else "Deadlock between threads: ")
        + f"{'; '.join(said)}. {advice}",
        rank=rank,
        thread=last.thread,
        step=last.step,
        time_ns=last.since_ns,
        where=where_of(run, rank, last.stack),
        evidence={
            "threads": [
                {
                    "thread": wait.thread,
                    "name": names[wait.thread],
                    "waits_for": wait.what,
                    "of": wait.holder,
                    "since_ns": wait.since_ns,
                    "where": where_of(run, rank, wait.stack),
                    "held_since_ns": wait.held_since_ns,
                    "stack": _stack(run, rank, wait.stack),
                }
                for wait in circle
            ],
            "advice": advice,
        },
        link=timeline_address(
            circle[0].since_ns,
            run.duration_ns,
            run.duration_ns,
            at=(thread_lane(rank, last.thread), last.since_ns),
        ),
    )


def _said(run: Run, rank: int, names: Mapping[str, str], wait: _Wait) -> str:
    where = where_of(run, rank, wait.stack)
    at = at_place(where)
    own = "it" if wait.holder == wait.thread else names[wait.holder]
    if wait.what != "a lock":
        return f"{names[wait.thread]} waits{at} for the end of {own}"
    since = "took before it started a thread"
    if wait.held_since_ns is not None:
        since = f"holds since {units.duration(wait.held_since_ns)}"
    elif wait.holder == wait.thread:
        since = "holds"
    return f"{names[wait.thread]} waits{at} for a lock that {own} {since}"


def _stuck(run: Run, rank: int) -> list[Finding]:
    """Threads that were in backward, at rest, when the watchdog saw no progress, and stayed so."""
    dumps = [r for r in run.events("stall", rank).to_pylist() if r["reason"] in NO_PROGRESS]
    if not dumps:
        return []
    columns = ["start_ns", "duration_ns", "kind", "step", "thread"]
    phases = run.events("phase", rank, columns=columns)
    phases = phases.filter(pc.is_null(phases["duration_ns"]))
    opened = {
        row["thread"]: row
        for row in phases.to_pylist()
        if row["kind"] == schema.PhaseKind.backward.name
    }
    last = {(row["pid"], row["thread"]): row for row in dumps}  # of each thread, its latest
    found = []
    for row in last.values():
        phase = opened.get(row["thread"])
        # A thread in a collective waits for another rank: plugin hangs reports that.
        if phase is None or row["collective"] or at_work(row):
            continue
        where = where_of(run, rank, row["stack"])
        waiting = f" and waits for {row['waiting']}" if row["waiting"] else ""
        after = f" (last: {row['last_op']})" if row["last_op"] else ""
        found.append(
            Finding(
                kind="deadlock",
                severity="error",
                title=f"Backward is stuck in {row['name']}{after}{waiting}"
                + at_place(where)
                + ". Look in its stack for the call that does not return.",
                rank=rank,
                thread=row["thread"],
                step=phase["step"],
                time_ns=phase["start_ns"],
                where=where,
                evidence={
                    "last_op": row["last_op"],
                    "waiting": row["waiting"],
                    "idle_ns": row["duration_ns"],
                    "stack": _stack(run, rank, row["stack"]),
                },
                link=timeline_address(
                    phase["start_ns"],
                    run.duration_ns,
                    run.duration_ns,
                    at=(thread_lane(rank, row["thread"]), phase["start_ns"]),
                ),
            )
        )
    return found


def _stack(run: Run, rank: int, stack: int | None) -> list[str]:
    return [frame_text(f) for f in frames_of(run, rank, stack)]


def _names(run: Run, rank: int) -> dict[str, str]:
    return {t.thread: t.name for t in run.threads_of(rank)}
