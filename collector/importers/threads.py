"""Maps lanes of a trace to processes and threads of the run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..format.file_names import thread_id
from ..format.record_kinds import ThreadKind
from .events import Label
from .spill import (
    GLOBAL,
    PHASE_KIND,
    USER_SLICE,
    ImportedLane,
    StructArray,
    Trace,
    field_of,
    is_main_thread,
    rows_per_lane,
)

_FIRST_SYNTHETIC_PID = 4_000_000_000
"""Process ids from here on are given to processes without one."""

_MAX_PID = 1 << 32


@dataclass(frozen=True)
class RunThread:
    """One thread of the run."""

    pid: int
    ordinal: int
    native_id: int
    name: str
    kind: str

    @property
    def thread(self) -> str:
        """Id within the rank."""
        return thread_id(self.pid, self.ordinal)


@dataclass(frozen=True)
class ThreadMap:
    """Thread of each lane; several lanes may share one."""

    of: dict[int, RunThread]
    main_pid: int
    labels: dict[int, Label]  # process -> its name in the trace


def map_threads(trace: Trace, slices: StructArray, numbers: Iterable[int]) -> ThreadMap:
    """Returns the threads of some lanes of a trace; `slices` are those of the lanes.

    The rank's own process is the one with most operators, or else most slices. It gets all streams
    and global marks.
    """
    lanes, chosen = trace.lanes.lanes, list(numbers)
    main = _main_process(lanes, chosen, slices)
    pids: dict[Any, int] = {}
    for lane in (lanes[number] for number in chosen):
        if not lane.stream and lane.pid != GLOBAL:
            pids.setdefault(_key(lane.pid), _pid(lane.pid, len(pids)))
    main_pid = pids.get(_key(main), 0)
    by_process: defaultdict[int, list[int]] = defaultdict(list)
    for number in chosen:
        lane = lanes[number]
        own = lane.stream or lane.pid == GLOBAL
        by_process[main_pid if own else pids[_key(lane.pid)]].append(number)
    found: dict[int, RunThread] = {}
    for pid, mine in by_process.items():
        mine.sort(key=lambda n: (not _is_main(lanes[n]), lanes[n].pid == GLOBAL))
        ordinal = 0
        for number in mine:
            lane = lanes[number]
            if lane.pid == GLOBAL and ordinal:
                found[number] = found[mine[0]]
                continue
            found[number] = RunThread(pid, ordinal, _native_id(lane), lane.name, _kind(trace, lane))
            ordinal += 1
    labels = {pid: label[1] for label, pid in pids.items()}
    return ThreadMap(found, main_pid, labels)


def _main_process(lanes: list[ImportedLane], chosen: list[int], slices: StructArray) -> Label:
    score: Counter[Any] = Counter()
    labels: dict[Any, Label] = {}
    every, kind = field_of(slices, "lane", np.uint16), field_of(slices, "kind")
    operators = every[(kind < PHASE_KIND) & (kind != USER_SLICE)]
    for weight, some in ((1, every), (1 << 32, operators)):
        counts = rows_per_lane(some)
        for number in np.flatnonzero(counts).tolist():
            count = int(counts[number])
            lane = lanes[number]
            if not lane.stream and lane.pid != GLOBAL:
                labels[_key(lane.pid)] = lane.pid
                # Tools invent processes with a name only, for example for their own spans.
                score[_key(lane.pid)] += count * weight * (1 << 16 if _is_pid(lane.pid) else 1)
    best = max(score, key=lambda key: score[key], default=None)
    if best is not None:
        return labels[best]
    mine = [lanes[number] for number in chosen]
    return next((lane.pid for lane in mine if not lane.stream and lane.pid != GLOBAL), None)


def _key(label: Label) -> tuple[str, Label]:
    return type(label).__name__, label


def _is_pid(label: Label) -> bool:
    return type(label) is int and 0 <= label < _FIRST_SYNTHETIC_PID


def _pid(label: Label, known: int) -> int:
    return label if _is_pid(label) and type(label) is int else _FIRST_SYNTHETIC_PID + known


def _is_main(lane: ImportedLane) -> bool:
    if lane.stream or lane.pid == GLOBAL:
        return False
    return is_main_thread(lane) or lane.name == "MainThread"


def _native_id(lane: ImportedLane) -> int:
    fits = type(lane.tid) is int and not lane.stream and 0 <= lane.tid < _MAX_PID
    return lane.tid if fits and type(lane.tid) is int else 0


def _kind(trace: Trace, lane: ImportedLane) -> str:
    if lane.stream:
        return ThreadKind.stream.name
    if _is_main(lane):
        return ThreadKind.main.name
    return trace.thread_kind.name
