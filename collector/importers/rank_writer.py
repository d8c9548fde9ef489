"""Writes one rank of an imported run: its tables, and its processes in the manifest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..compaction.arrow_columns import frames_column, numbers, to_table
from ..compaction.parquet import write_part
from ..format.array_types import Int64Array
from ..format.file_names import part_file, rank_folder, thread_folder
from ..format.names import COMMUNICATION_KERNEL
from ..format.record_kinds import MAX_TIME_NS
from ..format.schema import INT32, TABLES, Clock, File, Process
from .import_limits import MAX_COLLECTIVES
from .kineto import ProfilerSteps, profiler_steps
from .spill import (
    KERNEL_SLICE,
    PHASE_KIND,
    ByLane,
    CollectiveCall,
    StructArray,
    Trace,
    field_of,
    gather,
    release_pages,
)
from .threads import RunThread, ThreadMap
from .to_tables import (
    Launches,
    collective_table,
    op_tables,
    phase_tables,
    sync_tables,
    value_tables,
)

_BATCH_ROWS = 1 << 19
_SAMPLE = 1 << 16


@dataclass
class Rank:
    """Rows of one rank, ready to be written."""

    rank: int
    trace: Trace
    places: ThreadMap
    slices: StructArray
    steps: ProfilerSteps
    launches: Launches
    closed: bool = True
    has_counts: bool = True  # False: the counts of the file are listed with another rank
    host: str = ""
    seen_ns: int | None = None  # an instant at which it was there, where it has no events
    calls: list[CollectiveCall] = field(default_factory=list)

    @classmethod
    def of(cls, rank: int, trace: Trace, places: ThreadMap, slices: StructArray) -> Rank:
        """Returns a rank of a trace."""

        def thread_of(lane: int) -> str:
            place = places.of.get(lane)
            return place.thread if place else ""

        launches = Launches(slices, thread_of, trace.counts)
        host = trace.metadata.get("host_name", trace.metadata.get("hostname", ""))
        text = host[:200] if isinstance(host, str) else ""
        found = cls(rank, trace, places, slices, profiler_steps(trace, slices), launches)
        release_pages(slices)
        found.host = text.encode("utf-8", "replace").decode()
        return found

    def communication_kernels(self) -> dict[int, list[tuple[int, int]]]:
        """Returns (launch, end) in ns of the kernels of collectives, per lane and in order."""
        named = [
            number
            for number, text in enumerate(self.trace.texts.texts)
            if COMMUNICATION_KERNEL.search(text)
        ]
        kernels = field_of(self.slices, "kind") == KERNEL_SLICE
        which = np.flatnonzero(kernels & np.isin(field_of(self.slices, "name"), named))
        if len(which) > MAX_COLLECTIVES:
            self.trace.counts["unread_kernels_of_collectives"] += len(which) - MAX_COLLECTIVES
        mine = self.slices[which[:MAX_COLLECTIVES]]
        start, known, lane = self.launches.of(mine["correlation"])
        found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in np.flatnonzero(known & (mine["duration"] >= 0)).tolist():
            end = int(mine["start"][one] + mine["duration"][one])
            found[int(lane[one])].append((int(start[one]), end))
        for pairs in found.values():
            pairs.sort()
        return found


class RankWriter:
    """Writes ranks below a folder; `files` becomes the manifest's list of files."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.files: dict[str, File] = {}

    def write(self, rank: Rank) -> list[Process]:
        """Writes a rank's tables; returns its processes, with clocks that are not aligned yet."""
        spans: dict[str, tuple[RunThread, int, int]] = {}
        stacks: dict[str, int] = {}
        sorted_rows = _Sorted.of(rank)
        for place, lanes in _by_place(rank.places).items():
            self._lane(rank, sorted_rows, place, lanes, spans, stacks)
        if not spans and rank.seen_ns is not None:
            place = next(iter(rank.places.of.values()))
            spans[place.thread] = place, rank.seen_ns, rank.seen_ns
        folder = self._run / rank_folder(rank.rank)
        self._file(folder / "thread.parquet", "thread", _thread_table(spans))
        if stacks:
            ids = numbers(np.arange(len(stacks)), INT32)
            columns = {"stack": ids, "frames": frames_column(list(stacks))}
            self._file(folder / "stack.parquet", "stack", to_table(TABLES["stack"], columns))
        return _processes(rank, spans)

    def _lane(
        self,
        rank: Rank,
        sorted_rows: _Sorted,
        place: RunThread,
        lanes: Sequence[int],
        spans: dict[str, tuple[RunThread, int, int]],
        stacks: dict[str, int],
    ) -> None:
        trace, steps = rank.trace, rank.steps
        mine = sorted_rows.slices.positions(lanes)
        is_phase = gather(rank.slices, "kind", mine) >= PHASE_KIND
        ops, phases = (_chosen(mine, which) for which in (~is_phase, is_phase))
        values, arrows = sorted_rows.values.positions(lanes), sorted_rows.arrows.positions(lanes)
        value_rows, arrow_rows = trace.values.rows(), trace.arrows.rows()
        calls = [call for lane in lanes for call in sorted_rows.calls[lane]]
        calls.sort(key=lambda call: call.start)
        lane = trace.lanes.lanes[lanes[0]]
        device = lane.device
        tables: list[tuple[str, Iterable[pa.Table]]] = [
            ("op", op_tables(trace, rank.slices, ops, phases, steps, rank.launches, device)),
            ("phase", phase_tables(trace, rank.slices, phases, steps)),
            ("value", value_tables(trace, value_rows, values, steps)),
            ("sync", sync_tables(trace, arrow_rows, arrows, steps)),
            ("collective", [collective_table(calls, steps, stacks)] if calls else []),
        ]
        for name, parts in tables:
            for part, rows in enumerate(parts):
                self._part(rank, place, name, rows, part)
        instants = [
            *_extents(rank.slices, mine, sorted_rows.usual),
            *_extents(value_rows, values, sorted_rows.usual),
            *_extents(arrow_rows, arrows, sorted_rows.usual),
            _instants(calls),
        ]
        every = [one for one in instants if len(one)]
        if every:
            low, high = min(int(one.min()) for one in every), max(int(one.max()) for one in every)
            spans[place.thread] = (place, low, high)

    def _part(self, rank: Rank, place: RunThread, table: str, rows: pa.Table, part: int) -> None:
        folder = self._run / rank_folder(rank.rank) / thread_folder(place.thread)
        self._file(folder / part_file(table, part), table, rows)

    def _file(self, path: Path, table: str, rows: pa.Table) -> None:
        self.files[path.relative_to(self._run).as_posix()] = write_part(path, table, rows)


@dataclass(frozen=True)
class _Sorted:
    """Rows of a rank, by lane."""

    slices: ByLane
    values: ByLane
    arrows: ByLane
    calls: defaultdict[int, list[CollectiveCall]]
    usual: int  # median start: a few starts may be absurd

    @classmethod
    def of(cls, rank: Rank) -> _Sorted:
        calls: defaultdict[int, list[CollectiveCall]] = defaultdict(list)
        for call in rank.calls:
            calls[call.lane].append(call)
        values, arrows = rank.trace.values.rows(), rank.trace.arrows.rows()
        starts = field_of(rank.slices, "start")
        some = starts[:: max(1, len(starts) // _SAMPLE)]
        usual = int(np.sort(some)[len(some) // 2]) if len(some) else 0  # one of them
        return cls(ByLane(rank.slices), ByLane(values), ByLane(arrows), calls, usual)


def _chosen(rows: NDArray[np.uint32], which: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Returns the chosen rows, without a copy where all are."""
    return rows if which.all() else rows[which]


def _extents(slices: StructArray, which: NDArray[np.uint32], usual: int) -> Iterator[Int64Array]:
    """Yields [first start, last end] in ns of batches of slices or instants.

    Leaves out those impossibly far from the usual start; the reader of the run reports them.
    """
    for first in range(0, len(which), _BATCH_ROWS):
        some = which[first : first + _BATCH_ROWS]
        start = ends = gather(slices, "start", some)
        if "duration" in (slices.dtype.names or ()):
            ends = start + np.maximum(gather(slices, "duration", some), 0)
        usable = np.abs(start - usual) <= MAX_TIME_NS // 2
        if usable.any():
            yield np.array([start[usable].min(), ends[usable].max()])


def _by_place(places: ThreadMap) -> dict[RunThread, list[int]]:
    found: defaultdict[RunThread, list[int]] = defaultdict(list)
    for lane, place in places.of.items():
        found[place].append(lane)
    return found


def _instants(calls: Sequence[CollectiveCall]) -> Int64Array:
    found = [call.start for call in calls]
    found += [c.returned for c in calls if c.returned is not None]
    return np.array(found, np.int64)


def _thread_table(spans: dict[str, tuple[RunThread, int, int]]) -> pa.Table:
    found = list(spans.values())
    return to_table(
        TABLES["thread"],
        {
            "thread": list(spans),
            "pid": np.array([place.pid for place, _, _ in found], np.int64),
            "native_id": np.array([place.native_id for place, _, _ in found], np.int64),
            "name": [place.name for place, _, _ in found],
            "kind": [place.kind for place, _, _ in found],
            "start_ns": np.array([low for _, low, _ in found], np.int64),
            "end_ns": np.array([high for _, _, high in found], np.int64),
        },
    )


def _processes(rank: Rank, spans: dict[str, tuple[RunThread, int, int]]) -> list[Process]:
    found: dict[int, Process] = {}
    trace, places = rank.trace, rank.places
    for place, low, high in spans.values():
        known = found.get(place.pid)
        if known is not None:
            known["start_ns"] = min(known["start_ns"], low)
            known["end_ns"] = max(known["end_ns"], high)
            continue
        label = places.labels.get(place.pid)
        name = trace.process_names.get(label, "") or (label if isinstance(label, str) else "")
        own = place.pid == places.main_pid
        found[place.pid] = {
            "rank": rank.rank,
            "pid": place.pid,
            "parent_pid": 0 if own else places.main_pid,
            "role": "rank" if own else "child",
            "host": rank.host,
            "engine": trace.format,
            "start_ns": low,
            "end_ns": high,
            "closed": rank.closed,
            "ended": "",
            "exception": "",
            "argv": [name[:200].encode("utf-8", "replace").decode()] if name else [],
            "python": "",
            "torch": "",
            "modules_root": "",
            "clock": _clock(),
            "coverage": dict(trace.counts) if own and rank.has_counts else {},
        }
    return list(found.values())


def _clock() -> Clock:
    return {"offset_ns": 0, "drift_ppb": 0.0, "uncertainty_ns": 0, "calibrated": True, "host": ""}
