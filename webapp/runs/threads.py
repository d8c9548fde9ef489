"""The threads of a rank, in the order in which lanes are drawn."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.columns import TIME_COLUMNS
from lanescope.webapp.runs.clock_axis import Axis, axis_of
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.runs.parquet_parts import Part

_ID = re.compile(r"[0-9]{1,10}-[0-9]{1,10}")


class Thread(NamedTuple):  # a thousand ranks have 8,000, and a data class takes three times as long
    """One thread of one process of one rank. Times are on the run's axis, from its start."""

    rank: int
    pid: int
    thread: str  # "<pid>-<ordinal>", unique within the rank
    native_id: int
    name: str
    kind: str  # one of schema.ThreadKind
    start_ns: int  # first event
    end_ns: int  # last event
    role: str  # "rank", or "child" for a process that the rank started
    process_name: str  # the worker's, else the program as its command line names it

    @property
    def key(self) -> str:
        """Identity within the run: "<rank>/<pid>-<ordinal>"."""
        return f"{self.rank}/{self.thread}"

    @property
    def ordinal(self) -> int:
        """Order of appearance within the process, from 0."""
        return int(self.thread.partition("-")[2])

    def relative_to(self, origin_ns: int) -> Thread:
        """Returns the same thread with its times counted from `origin_ns`."""
        return self._replace(start_ns=self.start_ns - origin_ns, end_ns=self.end_ns - origin_ns)


def threads_of(
    rank: int,
    parts: list[Part],
    processes: Mapping[int, schema.Process],
    axes: Mapping[tuple[int, int], Axis],
) -> list[Thread]:
    """Returns threads of a rank with axis times: those its thread table names and those that left
    events.

    `processes` are those of the rank, by pid.

    A process that died may have left events of threads that its table never got to name; such a
    thread is called after its id and spans its events.
    """
    rows = [row for p in parts if p.table == schema.THREAD.name for row in _rows(p)]
    found: dict[str, Thread] = {}
    for row in rows:
        if not _ID.fullmatch(str(row["thread"])):
            raise RunError(
                f"the thread table of rank {rank} names a thread {shown(row['thread'])}, expected "
                "<pid>-<ordinal>"
            )
        pid = int(row["thread"].partition("-")[0])
        first, last = axis_of(axes, rank, pid).possible
        ends = row["start_ns"], row["end_ns"]
        if min(ends) < first or max(ends) > last:
            row = row | (_extent(rank, row["thread"], parts, axes) or {})
        thread = _thread(rank, row, processes, axes)
        found.setdefault(thread.thread, thread)
    for part in parts:
        if part.thread is not None and part.thread not in found:
            extent = _extent(rank, part.thread, parts, axes)
            if extent is not None:
                found[part.thread] = _thread(
                    rank, {"thread": part.thread, **extent}, processes, axes
                )
    children = {pid for pid, process in processes.items() if process["role"] != "rank"}
    return sorted(found.values(), key=lambda t: (t.pid in children, t.pid, t.ordinal))


def _rows(part: Part) -> list[dict[str, Any]]:
    if part.listed is not None and part.listed.threads is not None:
        return part.listed.threads
    names = [column.name for column in schema.THREAD.columns]
    rows: list[dict[str, Any]] = part.read(names).to_pylist()
    return rows


def _thread(
    rank: int,
    row: Mapping[str, Any],
    processes: Mapping[int, schema.Process],
    axes: Mapping[tuple[int, int], Axis],
) -> Thread:
    identity = str(row["thread"])
    pid = int(identity.partition("-")[0])
    process = processes.get(pid)
    axis = axis_of(axes, rank, pid)
    start, end = row["start_ns"] or 0, row["end_ns"] or 0
    return Thread(
        rank=rank,
        pid=pid,
        thread=identity,
        native_id=row.get("native_id") or 0,
        name=row.get("name") or f"thread {identity}",
        kind=row.get("kind") or schema.ThreadKind.native.name,
        start_ns=axis.instant(start),
        end_ns=axis.instant(max(start, end)),
        role=process["role"] if process else "child",
        process_name=_process_name(process) if process else "",
    )


def _process_name(process: schema.Process) -> str:
    return process.get("worker") or (_program(process["argv"][0]) if process["argv"] else "")


@functools.lru_cache(maxsize=64)
def _program(path: str) -> str:
    """`train.py` for `/data/train.py`."""
    return PurePath(path).name


def _extent(
    rank: int, thread: str, parts: list[Part], axes: Mapping[tuple[int, int], Axis]
) -> dict[str, int] | None:
    """First and last instant of the events of a thread, local time; None without events."""
    axis = axis_of(axes, rank, int(thread.partition("-")[0]))
    low: list[int] = []
    high: list[int] = []
    for part in parts:
        if part.thread != thread or not part.rows:
            continue
        names = [c.name for c in schema.TABLES[part.table].columns]
        read = [n for n in names if n in TIME_COLUMNS or n == "duration_ns"]
        table = part.read(read)
        values = {name: axis.believed(name, table[name]) for name in read}
        if "duration_ns" in values:
            values["duration_ns"] = pc.add(values["start_ns"], values["duration_ns"])
        for column in values.values():
            ends = pc.min_max(column).as_py()
            if ends["min"] is not None:
                low.append(ends["min"])
                high.append(ends["max"])
    return {"start_ns": min(low), "end_ns": max(high)} if low else None
