"""Finds races between functions that TorchScript forks (torch.jit.fork).

They run on threads of torch's own, and what orders them is not recorded. So only what they do while
both run counts: one that waits for another does nothing before that has ended, and one that forks
another has done nothing since that began.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.access_site import CallSites, MemoryAccess, storage_names
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.stack_frames import frame_texts
from lanescope.webapp.plugins.races.races import Race, processes_of
from lanescope.webapp.runs.run import Run

FORKED = "<forked function>"
"""Name of the event of such a function."""

MAX_PAIRS = 200
"""Pairs of functions of a process that are looked at."""

_COLUMNS = ["start_ns", "duration_ns", "depth", "storage", "offset", "bytes", "write", "birth"]


def forked_races(run: Run) -> list[Race]:
    """Returns at most one race per process: the first of all."""
    found = []
    for rank in run.ranks:
        native = {t.thread for t in run.threads_of(rank) if t.kind == "native"}
        for threads in processes_of(run, rank):
            own = [one for one in threads if one in native and _forks(run, rank, one)]
            if len(own) > 1:
                found += _of_process(run, rank, own)
    return found


def _forks(run: Run, rank: int, thread: str) -> bool:
    pieces = run.pieces("op", rank, thread, columns=["name"])
    return any(pc.any(pc.equal(one["name"].cast(pa.string()), FORKED)).as_py() for one in pieces)


def _of_process(run: Run, rank: int, threads: list[str]) -> list[Race]:
    pairs: list[tuple[pd.Series, pd.Series]] = []
    for one, other in _together(run, rank, threads):
        window = max(one.start, other.start), min(one.end, other.end)
        pairs += _common(*(_accesses(run, rank, task.thread, window) for task in (one, other)))
    if not pairs:
        return []
    pairs.sort(key=lambda pair: int(pair[0]["start_ns"]))
    first, second = sorted(pairs[0], key=lambda row: int(row["start_ns"]))
    names = storage_names(run, rank)
    tensors = dict.fromkeys(
        names.get(int(one["storage"]), "a tensor that forked functions share") for one, _ in pairs
    )
    return [
        Race(
            rank=rank,
            first=_access(run, rank, first),
            second=_access(run, rank, second),
            threads=tuple(threads),
            low=max(int(first["offset"]), int(second["offset"])),
            high=min(_high(first), _high(second)),
            overlapped=int(second["start_ns"]) < int(first["start_ns"] + first["duration_ns"]),
            pairs=len(pairs),
            tensors=tuple(tensors),
        )
    ]


@dataclass(frozen=True)
class _Task:
    """A forked function that ran."""

    thread: str
    start: int
    end: int


def _together(run: Run, rank: int, threads: list[str]) -> list[tuple[_Task, _Task]]:
    """The first MAX_PAIRS pairs of functions that ran at the same time."""
    tasks = []
    for thread in threads:
        ops = run.events("op", rank, thread, ["start_ns", "duration_ns", "name"])
        ops = ops.filter(pc.equal(ops["name"].cast(pa.string()), FORKED))
        ops = ops.filter(pc.is_valid(ops["duration_ns"]))
        for start, length in zip(ops["start_ns"], ops["duration_ns"], strict=True):
            tasks.append(_Task(thread, start.as_py(), start.as_py() + length.as_py()))
    tasks.sort(key=lambda task: task.start)
    found: list[tuple[_Task, _Task]] = []
    for i, one in enumerate(tasks):
        for other in tasks[i + 1 :]:
            if other.start >= one.end or len(found) == MAX_PAIRS:
                break
            if other.thread != one.thread:
                found.append((one, other))
    return found


def _accesses(run: Run, rank: int, thread: str, window: tuple[int, int]) -> pd.DataFrame:
    """Of a thread within a window, without storages that are made in it."""
    rows = to_frame(run.events("access", rank, thread, _COLUMNS, window)).assign(by=thread)
    rows = rows[(rows["start_ns"] >= window[0]) & (rows["start_ns"] < window[1])]
    made = set(rows.loc[rows["birth"].astype(bool), "storage"])
    return rows[~rows["storage"].isin(made)].drop_duplicates(["storage", "offset", "write"])


def _common(one: pd.DataFrame, other: pd.DataFrame) -> list[tuple[pd.Series, pd.Series]]:
    """Returns pairs of accesses to common bytes; at least one of each writes."""
    found = []
    for _, a in one[one["storage"].isin(set(other["storage"]))].iterrows():
        for _, b in other[other["storage"] == a["storage"]].iterrows():
            meets = max(a["offset"], b["offset"]) < min(_high(a), _high(b))
            if meets and (a["write"] or b["write"]):
                found.append((a, b))
    return found


def _high(row: pd.Series) -> int:
    return int(row["offset"] + row["bytes"])


def _access(run: Run, rank: int, row: pd.Series) -> MemoryAccess:
    thread, start = str(row["by"]), int(row["start_ns"])
    sites = CallSites()
    numbers, steps = sites.of(run, rank, thread, np.array([start]), np.array([row["depth"]]))
    site = sites.known[int(numbers[0])]
    return MemoryAccess(
        thread=thread,
        op=site.op,
        module=site.module,
        phase=site.phase,
        start_ns=start,
        end_ns=start + int(row["duration_ns"]),
        write=bool(row["write"]),
        step=int(steps[0]),
        stack=_caller(run, rank, start),
    )


def _caller(run: Run, rank: int, instant: int) -> tuple[str, ...]:
    """The stack of the last operator of the main thread before an instant: what forked, or near."""
    main = next((t.thread for t in run.threads_of(rank) if t.kind == "main"), None)
    ops = run.events("op", rank, main, ["start_ns", "stack"], (0, instant))
    ops = ops.filter(pc.and_(pc.is_valid(ops["stack"]), pc.less_equal(ops["start_ns"], instant)))
    if not ops.num_rows:
        return ()
    last = int(np.argmax(ops["start_ns"].to_numpy()))
    return tuple(frame_texts(run, rank).get(ops["stack"][last].as_py(), ()))
