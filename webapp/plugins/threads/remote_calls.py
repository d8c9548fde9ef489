"""Finds workers of torch.distributed.rpc that wait for each other: none has a thread to answer.

A worker runs the calls of others on a fixed number of threads (num_worker_threads). One that calls
another worker from such a call keeps its thread until the answer comes, which may need that thread.
Known from what the watchdogs of all ranks saw: each thread waits within torch.distributed.rpc, one
of them for an answer that a call of another worker asked for, and nothing went on afterwards.
"""

from __future__ import annotations

from typing import Any

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.process_exits import endings
from lanescope.webapp.analysis.rank_state import NO_PROGRESS, at_work, dumps
from lanescope.webapp.analysis.stack_frames import frames_of, own_place
from lanescope.webapp.runs.run import Run

_RPC = "torch/distributed/rpc/"
_HANDLER, _ASKS = "_run_function", ("rpc_sync", "rpc_async", "remote")
_MAX_NAMED = 4


def remote_calls(run: Run) -> list[Finding]:
    """Returns at most one finding of kind `deadlock`. Raises NotApplicable."""
    need_ranks(run)
    last = {rank: _last_dump(run, rank) for rank in run.ranks}
    waiting = [row for rows in last.values() for row in rows if _asks_within_a_call(run, row)]
    if not waiting or not all(last.values()):
        return []
    if not all(_waits_for_others(run, row) for rows in last.values() for row in rows):
        return []
    places = [(int(row["rank"]), own_place(run, row["rank"], row["stack"])) for row in waiting]
    said = "; ".join(f"rank {rank} at {place}" for rank, place in places[:_MAX_NAMED])
    first = waiting[0]
    since = int(first["time_ns"] - first["duration_ns"])
    return [
        Finding(
            kind="deadlock",
            severity="error",
            title="Deadlock between RPC workers: every thread waits for another worker, and these "
            f"wait for an answer within a call that they run for another one: {said}. Such a call "
            "keeps a thread of its worker, which then has none to answer with. Raise "
            "num_worker_threads above the depth of nested calls, or decorate the function with "
            "rpc.functions.async_execution and return a future.",
            rank=int(first["rank"]),
            ranks=tuple(sorted({rank for rank, _ in places})),
            time_ns=since,
            where=places[0][1],
            evidence={
                "waiting": [{"rank": rank, "where": place} for rank, place in places],
                "idle_ns": int(first["duration_ns"]),
            },
            link=timeline_address(since, run.duration_ns, run.duration_ns),
        )
    ]


def _last_dump(run: Run, rank: int) -> list[dict[str, Any]]:
    """Rows of the last dump of a rank that rests; none where it ended by itself, or went on."""
    rows = [row for row in dumps(run, rank) if row["reason"] in NO_PROGRESS]
    if not rows or endings(run)[rank].how == "exit":
        return []
    rows = [row for row in rows if row["time_ns"] == rows[-1]["time_ns"]]
    last = max((t.end_ns for t in run.threads_of(rank) if t.pid == rows[0]["pid"]), default=0)
    return [] if last > rows[0]["time_ns"] else rows


def _waits_for_others(run: Run, row: dict[str, Any]) -> bool:
    frames = frames_of(run, row["rank"], row["stack"])
    return not at_work(row) and any(_RPC in frame["file"] for frame in frames)


def _asks_within_a_call(run: Run, row: dict[str, Any]) -> bool:
    """Whether a thread runs a call of another worker and waits for an answer in it."""
    names = [
        frame["function"]
        for frame in frames_of(run, row["rank"], row["stack"])
        if _RPC in frame["file"]
    ]
    return _HANDLER in names and bool(set(names[: names.index(_HANDLER)]) & set(_ASKS))
