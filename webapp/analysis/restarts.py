"""Which of a rank's processes is the one to judge, where a launcher started the job again?

An elastic launcher ends all ranks when one fails, and starts them anew with the same numbers. The
calls of each attempt count from zero, so those of two attempts must not be held against each other:
only the last one is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.runs.run import Run


@lru_cache(maxsize=4)
def attempts(run: Run) -> Mapping[int, tuple[schema.Process, ...]]:
    """Per recorded rank its own processes, those that it started left out, one per attempt.

    The first that is listed, and each that made collectives, or that no other process of the rank
    started, and that began when the one before it had ended. A rank without any has none.
    """
    found: dict[int, tuple[schema.Process, ...]] = {}
    for process in run.manifest["processes"]:
        if process["role"] == "rank":
            found[process["rank"]] = (*found.get(process["rank"], ()), process)
    return MappingProxyType(
        {rank: _one_by_one(run, rank, processes) for rank, processes in found.items()}
    )


def own_processes(run: Run) -> dict[int, schema.Process]:
    """The process of each rank that is the rank: that of the last attempt."""
    return {rank: processes[-1] for rank, processes in attempts(run).items()}


def of_last_attempt(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a frame with `rank` and `thread` that are not of an attempt that was given up."""
    earlier = [
        (rank, process["pid"])
        for rank, processes in attempts(run).items()
        for process in processes[:-1]
    ]
    if not earlier:
        return frame
    pids = frame["thread"].astype(str).str.partition("-")[0].astype("int64")
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
    # Where a program starts itself again by exec, all that it was has one number.
    chosen = [
        one for one in processes if one["pid"] in called or one["parent_pid"] not in pids
    ] or [*processes[:1]]
    chosen.sort(key=lambda one: one["start_ns"])
    found = [chosen[0]]
    for one in chosen[1:]:
        if one["start_ns"] >= found[-1]["end_ns"]:
            found.append(one)
    return tuple(found)
