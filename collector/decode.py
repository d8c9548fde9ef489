"""Journal records -> Arrow tables of `schema`. Pure: reads a journal, writes nothing.

The compactor uses it to make Parquet, and a reader to recover a run whose processes died before
anyone could.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .journal import NO_SEQUENCE, Kind
from .journal_reader import ProcessLog, Records, ThreadLog, read_records
from .kinds import OpScope, PhaseKind, SyncKind, ThreadKind, thread_id
from .schema import TABLES, AxisReference, Process, Table

CHUNK_RECORDS = 1_000_000
"""Records decoded at a time: bounds memory, and is the size of a part file."""

_EVENTS = (Kind.OP, Kind.COLLECTIVE, Kind.PHASE, Kind.GRADIENT, Kind.VALUE)
_TIMED = (*_EVENTS, Kind.SYNC)
_NULL_TEXT = 0


@dataclass
class Decoder:
    """Turns one process's journal into tables.

    `known_stacks` are the rows of the rank's stack table so far: a stack that is there keeps its
    id, and only new ones come out of `rank_tables`.
    """

    log: ProcessLog
    known_stacks: pa.Table | None = None
    first_ordinal: int = 0  # what the ordinals of this journal's threads are counted from
    _stack_ids: dict[str, int] = field(init=False, default_factory=dict)
    _stacks_before: int = field(init=False, default=0)
    _texts: NDArray[np.object_] = field(init=False)
    _completions: dict[tuple[str, int], int] = field(init=False)
    _modules: dict[str, tuple[str, int]] = field(init=False, default_factory=dict)
    _threads: dict[str, dict[str, Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._texts = np.array(self.log.texts, dtype=object)
        if self.known_stacks is not None:
            for row in self.known_stacks.to_pylist():
                frames = (f"{f['file']}\t{f['line']}\t{f['function']}" for f in row["frames"])
                self._stack_ids["\n".join(frames)] = row["stack"]
        self._stacks_before = len(self._stack_ids)
        self._completions = dict(self._find_completions())

    @property
    def pid(self) -> int:
        """The process."""
        return int(self.log.process["pid"])

    def thread_name(self, thread: ThreadLog) -> str:
        """Identity of a thread within the run."""
        return thread_id(self.pid, self.first_ordinal + thread.ordinal)

    def is_empty(self) -> bool:
        """Whether the process did nothing worth a lane (a launcher, a helper)."""
        return not any(
            np.isin(records["kind"], _EVENTS).any()
            for thread in self.log.threads
            for records in (*thread.records(), thread.open_events())
        )

    def thread_tables(self) -> Iterator[tuple[str, str, int, pa.Table]]:
        """(thread id, table, part, rows): all that the journal holds, sorted by start."""
        for thread in self.log.threads:
            for portion in portions(thread, ended=True):
                for table, rows in self.decode(thread, portion.records):
                    yield self.thread_name(thread), table, portion.part, rows

    def decode(
        self, thread: ThreadLog, records: Records, *, collectives: bool = True
    ) -> Iterator[tuple[str, pa.Table]]:
        """(table, rows) of some records of a thread.

        Without `collectives` these are left for later: their completion may not be known yet.
        """
        self._note_thread(thread, records)
        for module in records[records["kind"] == Kind.MODULE]:
            path = self._text(int(module["name"]))
            self._modules[path] = (self._text(int(module["aux"])), int(module["extra"]))
        for kind, table, columns in (
            (Kind.OP, "op", self._op),
            (Kind.COLLECTIVE, "collective", self._collective),
            (Kind.PHASE, "phase", self._phase),
            (Kind.GRADIENT, "gradient", self._gradient),
            (Kind.SYNC, "sync", self._sync),
            (Kind.VALUE, "value", self._value),
        ):
            chosen = records[records["kind"] == kind]
            if not len(chosen) or (kind == Kind.COLLECTIVE and not collectives):
                continue
            # Parents before children: by start, and at the same start the outer one first.
            rows = chosen[np.lexsort((chosen["depth"], chosen["start"]))]
            yield table, _table(TABLES[table], columns(rows))

    def rank_tables(self) -> dict[str, pa.Table]:
        """Threads, modules and new stacks, of what was decoded so far."""
        new = list(self._stack_ids.items())[self._stacks_before :]
        stacks = [{"stack": i, "frames": _frames(text)} for text, i in new]
        modules = [
            {"path": path, "class": kind, "parameters": count}
            for path, (kind, count) in self._modules.items()
        ]
        rows = {"thread": list(self._threads.values()), "module": modules, "stack": stacks}
        return {n: pa.Table.from_pylist(r, TABLES[n].arrow()) for n, r in rows.items()}

    def thread_row(self, thread: ThreadLog) -> dict[str, Any] | None:
        """The thread's row of the thread table so far; None where it has no events."""
        return self._threads.get(self.thread_name(thread))

    @property
    def dropped(self) -> int:
        """Records that found no room, as the segments' headers count them."""
        return sum(thread.dropped for thread in self.log.threads)

    def _note_thread(self, thread: ThreadLog, records: Records) -> None:
        """Widen what is known of the thread by these records."""
        named = records[records["kind"] == Kind.THREAD]
        timed = records[np.isin(records["kind"], _TIMED)]
        # What compaction left of a thread's earlier records carries their span.
        spans = np.concatenate([timed, named[named["end"] > named["start"]]])
        if not len(spans):  # a backend's thread that only reported completions
            return
        identity = self.thread_name(thread)
        known = self._threads.setdefault(
            identity,
            {
                "thread": identity,
                "pid": self.pid,
                "native_id": thread.native_id,
                "name": f"thread {thread.ordinal}",
                "kind": ThreadKind(thread.kind).name,
                "start_ns": 2**63 - 1,
                "end_ns": 0,
            },
        )
        if len(named):
            known["name"] = self._text(int(named[-1]["name"])) or known["name"]
        known["start_ns"] = min(known["start_ns"], int(spans["start"].min()))
        latest = int(np.maximum(spans["start"], spans["end"]).max())
        known["end_ns"] = max(known["end_ns"], latest)

    # one table each ------------------------------------------------------------------------

    def _op(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = _durations(rows)
        shapes, dtypes, devices = self._signature(rows["signature"])
        return {
            "start_ns": rows["start"],
            "duration_ns": pa.array(duration, mask=unfinished),
            "self_ns": pa.array(self_times(rows, duration), mask=unfinished),
            "name": self._dictionary(rows["name"]),
            "scope": _enum(rows["scope"], OpScope),
            "depth": rows["depth"].astype(np.int16),
            "step": rows["step"],
            "phase": self._dictionary(rows["phase"]),
            "module": self._dictionary(rows["module"]),
            "sequence": pa.array(rows["sequence"], mask=rows["sequence"] == NO_SEQUENCE),
            "shapes": shapes,
            "dtypes": dtypes,
            "device": devices,
            "stack": self._stack(rows["stack"]),
        }

    def _collective(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = _durations(rows)
        shapes, dtypes, _ = self._signature(rows["signature"])
        group, size, peer = self._split(rows["aux"])
        names = group.to_pylist()
        ends = [
            self._completions.get((name, int(sequence)))
            for name, sequence in zip(names, rows["sequence"], strict=True)
        ]
        peers = [int(p) if p else None for p in peer.to_pylist()]
        return {
            "start_ns": rows["start"],
            "duration_ns": pa.array(duration, mask=unfinished),
            "complete_ns": pa.array(ends, pa.int64()),
            "name": self._dictionary(rows["name"]),
            "group": group,
            "group_size": pa.array([int(s) if s else None for s in size.to_pylist()], pa.int32()),
            "sequence": rows["sequence"],
            "peer": pa.array(peers, pa.int32()),
            "shapes": shapes,
            "dtypes": dtypes,
            "bytes": rows["extra"],
            "asynchronous": pa.array(rows["scope"] == 1),
            "step": rows["step"],
            "phase": self._dictionary(rows["phase"]),
            "module": self._dictionary(rows["module"]),
            "stack": self._stack(rows["stack"]),
        }

    def _phase(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = _durations(rows)
        return {
            "start_ns": rows["start"],
            "duration_ns": pa.array(duration, mask=unfinished),
            "name": self._dictionary(rows["name"]),
            "kind": _enum(rows["scope"], PhaseKind),
            "depth": rows["depth"].astype(np.int16),
            "step": rows["step"],
            "module": self._dictionary(rows["module"]),
        }

    def _gradient(self, rows: Records) -> dict[str, Any]:
        _, dtypes, devices = self._signature(rows["signature"])
        norms = np.ascontiguousarray(rows["sequence"]).view("<f8")
        return {
            "time_ns": rows["start"],
            "step": rows["step"],
            "parameter": self._dictionary(rows["name"]),
            "norm": pa.array(norms, mask=rows["scope"] == 1, from_pandas=False),
            "numel": rows["extra"],
            "dtype": dtypes,
            "device": devices,
            "optimizer": rows["aux"].astype(np.int32),
        }

    def _sync(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = _durations(rows)
        first = self.first_ordinal - 1
        peers = [thread_id(self.pid, first + int(a)) if a else None for a in rows["aux"]]
        return {
            "start_ns": rows["start"],
            "duration_ns": pa.array(duration, mask=unfinished),
            "kind": _enum(rows["scope"], SyncKind),
            "peer": pa.array(peers, pa.string()),
            "step": rows["step"],
            "stack": self._stack(rows["stack"]),
        }

    def _value(self, rows: Records) -> dict[str, Any]:
        return {
            "time_ns": rows["start"],
            "name": self._dictionary(rows["name"]),
            "value": np.ascontiguousarray(rows["sequence"]).view("<f8"),
            "step": rows["step"],
        }

    # texts ---------------------------------------------------------------------------------

    def _text(self, identity: int) -> str:
        return self.log.texts[identity] if identity < len(self.log.texts) else ""

    def _dictionary(self, ids: NDArray[np.uint32]) -> pa.DictionaryArray:
        codes, present = _codes(ids, len(self._texts))
        return _dictionary(codes, [self._texts[i] for i in present])

    def _split(self, ids: NDArray[np.uint32]) -> tuple[pa.DictionaryArray, ...]:
        """Three columns from texts of three parts, each with a dictionary of its own."""
        codes, present = _codes(ids, len(self._texts))
        parts = [[*self._texts[i].split("\t"), "", "", ""][:3] for i in present]
        return tuple(_dictionary(codes, [p[column] for p in parts]) for column in range(3))

    _signature = _split

    def _stack(self, ids: NDArray[np.uint32]) -> pa.Array:
        codes, present = _codes(ids, len(self._texts))
        known = np.zeros(max(1, len(present)), np.int32)
        for position, identity in enumerate(present):
            if identity != _NULL_TEXT:
                text = self._texts[identity]
                known[position] = self._stack_ids.setdefault(text, len(self._stack_ids))
        return pa.array(known[codes], mask=ids == _NULL_TEXT)

    def _find_completions(self) -> Iterator[tuple[tuple[str, int], int]]:
        for thread in self.log.threads:
            for records in thread.records():
                for end in records[records["kind"] == Kind.COLLECTIVE_END]:
                    key = (self._text(int(end["aux"])), int(end["sequence"]))
                    yield key, int(end["end"])


UNCALIBRATED_NS = 1_000_000_000
"""Uncertainty stated for hosts aligned by their wall clocks alone: nothing better is known."""


def first_ordinal(log: ProcessLog, threads: pa.Table | None) -> int:
    """What to count a journal's thread ordinals from, given the rank's thread table so far.

    A process id is used again after exec, and in time by the system: the threads of the earlier
    program of that id keep theirs. The same on every attempt.
    """
    if threads is None:
        return 0
    earlier = [
        int(row["thread"].partition("-")[2])
        for row in threads.select(["thread", "pid", "start_ns"]).to_pylist()
        if row["pid"] == log.process["pid"] and row["start_ns"] < log.process["start_ns"]
    ]
    return max(earlier, default=-1) + 1


def axis_reference(process: dict[str, Any]) -> AxisReference:
    """The clock of a process as the one that the run's axis is."""
    return {
        "clock_identity": process["clock_identity"],
        "wall_minus_monotonic_ns": process["wall_minus_monotonic_ns"],
    }


def process_entry(process: dict[str, Any], reference: AxisReference) -> Process:
    """A process as the manifest lists it; `reference` is the clock that the run's axis is."""
    shared = process["clock_identity"] == reference["clock_identity"]
    offset = process["wall_minus_monotonic_ns"] - reference["wall_minus_monotonic_ns"]
    return {
        "rank": process["rank"],
        "pid": process["pid"],
        "parent_pid": process["parent_pid"],
        "role": process["role"],
        "host": process["host"],
        "engine": process["engine"],
        "start_ns": process["start_ns"],
        "end_ns": process["end_ns"],
        "closed": process["closed"],
        "argv": process["argv"],
        "python": process["python"],
        "torch": process["torch"],
        "modules_root": process["modules_root"],
        "clock": {
            "offset_ns": 0 if shared else offset,
            "drift_ppb": 0.0,
            "uncertainty_ns": 0 if shared else UNCALIBRATED_NS,
            "calibrated": shared,
            "host": process["clock_identity"],
        },
        "coverage": process.get("coverage", {}),
    }


def self_times(rows: Records, duration: NDArray[np.int64]) -> NDArray[np.int64]:
    """Duration less that of direct children, ns. `rows` sorted by start, parents first.

    The parent of a row of depth d is the last row of depth d-1 that starts no later, provided it
    reaches as far; a row whose parent was filtered out takes from no one.
    """
    depths, starts = rows["depth"].astype(np.int64), rows["start"].astype(np.int64)
    ends = starts + duration
    result = duration.copy()
    for depth in range(1, int(depths.max(initial=0)) + 1):
        children = np.flatnonzero(depths == depth)
        parents = np.flatnonzero(depths == depth - 1)
        if not len(children) or not len(parents):
            continue
        position = np.searchsorted(starts[parents], starts[children], "right") - 1
        parent = parents[np.maximum(position, 0)]
        inside = (position >= 0) & (ends[parent] >= ends[children])
        np.subtract.at(result, parent[inside], duration[children[inside]])
    return result


@dataclass(frozen=True)
class Portion:
    """Records of a thread that become one part file of each table."""

    part: int
    records: Records
    left: Records  # behind the cut, for the next portion
    segments: int  # how many of the thread's segments are used up with it


def portions(thread: ThreadLog, *, ended: bool) -> Iterator[Portion]:
    """A thread's records, cut where no op is open, so that parents stay with children.

    Where the thread has `ended`, all of them, and last the events that were still open. Else the
    segment that is being written to and a last small portion are left out. The same on every
    attempt, so that a part that was written twice is the same file.
    """
    held: list[Records] = []
    count, part = 0, thread.parts
    sealed = thread.segments if ended else thread.segments[:-1]
    for position, path in enumerate(sealed):
        records = read_records(path)
        held.append(records)
        count += len(records)
        if count < CHUNK_RECORDS:
            continue
        whole = np.concatenate(held)
        cut = _outermost_end(whole)
        if cut:
            yield Portion(part, whole[:cut], whole[cut:], position + 1)
            part += 1
            held, count = [whole[cut:]], len(whole) - cut
    if ended:
        held.append(thread.open_events())
        whole = np.concatenate(held)
        yield Portion(part, whole, whole[:0], len(thread.segments))


def _outermost_end(records: Records) -> int:
    """How many records there are up to the last op that no other contains."""
    outermost = np.flatnonzero((records["kind"] == Kind.OP) & (records["depth"] == 0))
    return int(outermost[-1]) + 1 if len(outermost) else 0


def _durations(rows: Records) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    unfinished = rows["end"] == 0
    duration = np.where(unfinished, 0, rows["end"] - rows["start"]).astype(np.int64)
    return duration, unfinished


def _codes(ids: NDArray[np.uint32], count: int) -> tuple[NDArray[np.int32], list[int]]:
    """Codes into the list of the ids present. An id past the table's end counts as empty."""
    safe = np.where(ids < count, ids, 0)
    present = np.zeros(count, bool)
    present[safe] = True
    code_of = np.cumsum(present, dtype=np.int32) - 1
    return code_of[safe].astype(np.int32), np.flatnonzero(present).tolist()


def _dictionary(codes: NDArray[np.int32], texts: list[str]) -> pa.DictionaryArray:
    """A dictionary array; equal texts share an entry."""
    entries: dict[str, int] = {}
    merged = np.array([entries.setdefault(t, len(entries)) for t in texts], np.int32)
    return pa.DictionaryArray.from_arrays(
        pa.array(merged[codes] if len(texts) else codes), pa.array(list(entries), pa.string())
    )


def _enum(values: NDArray[np.uint8], kind: Any) -> pa.DictionaryArray:
    names = [member.name for member in kind]
    codes = np.minimum(values, len(names) - 1).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string()))


def _table(table: Table, columns: dict[str, Any]) -> pa.Table:
    schema = table.arrow()
    arrays = [pa.array(columns[f.name]).cast(f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _frames(text: str) -> list[dict[str, Any]]:
    frames = []
    for line in text.split("\n"):
        file, number, function = [*line.split("\t"), "", ""][:3]
        frames.append(
            {"file": file, "line": int(number) if number.isdigit() else 0, "function": function}
        )
    return frames
