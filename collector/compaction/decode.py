"""Decodes journal records into Arrow tables of `schema`; writes nothing.

Compaction writes the tables as Parquet. A reader uses them directly for processes that died before
compaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..format.file_names import thread_id
from ..format.record_kinds import (
    FX_NODE,
    MAX_TIME_NS,
    GradientScope,
    OpScope,
    PhaseKind,
    SyncKind,
    ThreadKind,
)
from ..format.schema import FLOAT64, INT32, INT64, TABLES, TEXT
from ..journal.journal import NO_SEQUENCE, RUNNABLE_UNIT_NS, RecordKind
from .arrow_columns import (
    TextColumns,
    by_start,
    dictionary,
    durations,
    enum_column,
    frames_column,
    integers,
    numbers,
    self_times,
    to_table,
    with_hashes,
)
from .chunks import chunks_of
from .decode_accesses import access_columns
from .decode_parameters import activation_columns, fx_columns, node_columns, parameter_columns
from .decode_stalls import dump_rows
from .decode_tensors import tensor_columns
from .reader import ProcessLog, Records, ThreadLog, take

_EVENTS = (
    RecordKind.OP,
    RecordKind.COLLECTIVE,
    RecordKind.PHASE,
    RecordKind.GRADIENT,
    RecordKind.VALUE,
)
_TIMED = (*_EVENTS, RecordKind.SYNC)
_SAMPLED = GradientScope.SAMPLE | GradientScope.ACTIVATION | GradientScope.NODE
_UNKNOWN = -1
_ENDED_REST = ("interrupt", "abort")
"""Reasons of dumps of a rest that a user or the watchdog ended."""


@dataclass
class Decoder:
    """Decodes one process's journal.

    `known_stacks` are the rows of the rank's stack table so far: a known stack keeps its id, and
    `rank_tables` returns only new ones.
    """

    log: ProcessLog
    known_stacks: pa.Table | None = None
    first_ordinal: int = 0  # added to the ordinals of this journal's threads
    _texts: TextColumns = field(init=False)
    _modules: dict[str, tuple[str, int]] = field(init=False, default_factory=dict)
    _storages: dict[tuple[int, str], None] = field(init=False, default_factory=dict)
    _threads: dict[str, dict[str, Any]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._texts = TextColumns(self.log.texts, self.known_stacks)

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self.log.process["pid"])

    def thread_name(self, thread: ThreadLog) -> str:
        """Returns the identity of a thread within the run."""
        return thread_id(self.pid, self.first_ordinal + thread.ordinal)

    def is_empty(self) -> bool:
        """Returns True for a process without events (a launcher, a helper), unless others expect
        it as a rank, or a user or the watchdog ended its rest."""
        awaited = self._is_awaited and bool(self.log.threads)
        return not awaited and not any(
            np.isin(records["kind"], _EVENTS).any()
            for thread in self.log.threads
            for records in (*thread.records(), thread.open_events())
        )

    @cached_property
    def _is_awaited(self) -> bool:
        if self.log.process.get("expected"):
            return True
        return any(row["reason"] in _ENDED_REST for row in dump_rows(self.log, 0))

    def thread_tables(self) -> Iterator[tuple[str, str, int, pa.Table]]:
        """Yields (thread id, table, part, rows) of the whole journal, by start."""
        for thread in self.log.threads:
            for chunk in chunks_of(thread, ended=True):
                for table, rows in self.decode(thread, chunk.records):
                    yield self.thread_name(thread), table, chunk.part, rows

    def decode(
        self, thread: ThreadLog, records: Records, *, collectives: bool = True
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yields (table, rows) of some records of a thread.

        Leaves out collectives unless `collectives`: they may not be complete yet.
        """
        kinds = np.ascontiguousarray(records["kind"])
        self._note_thread(thread, records, kinds)
        for module in take(records, kinds == RecordKind.MODULE):
            path = self._texts[int(module["name"])]
            self._modules[path] = (self._texts[int(module["aux"])], int(module["extra"]))
        for storage in take(records, kinds == RecordKind.STORAGE):
            self._storages[int(storage["extra"]), self._texts[int(storage["name"])]] = None
        for kind, table, columns in (
            (RecordKind.OP, "op", self._op),
            (RecordKind.COLLECTIVE, "collective", self._collective),
            (RecordKind.PHASE, "phase", self._phase),
            (RecordKind.GRADIENT, "gradient", self._gradient),
            (RecordKind.SYNC, "sync", self._sync),
            (RecordKind.VALUE, "value", self._value),
        ):
            which = np.flatnonzero(kinds == kind)
            if kind == RecordKind.GRADIENT:
                which = which[(records["scope"][which] & _SAMPLED) == 0]
            if not len(which) or (kind == RecordKind.COLLECTIVE and not collectives):
                continue
            order = by_start(records["start"][which], records["depth"][which])
            rows = take(records, which[order])
            yield table, to_table(TABLES[table], columns(rows))
        yield from self._sampled(take(records, kinds == RecordKind.GRADIENT))
        accesses = access_columns(records, kinds)
        if accesses is not None:
            yield "access", to_table(TABLES["access"], accesses)
        tensors = tensor_columns(records, kinds, self._texts.texts)
        if tensors is not None:
            yield "tensor", to_table(TABLES["tensor"], tensors)

    def rank_tables(self) -> dict[str, pa.Table]:
        """Returns threads, modules, storages, stalls and new stacks of the records so far."""
        if not self._threads:
            self._note_presence()
        stalls = self._stalls()
        new = self._texts.new_stacks()
        threads, modules = self._threads.values(), self._modules
        columns: dict[str, dict[str, Any]] = {
            "thread": {
                c.name: [row[c.name] for row in threads]
                if c.type in (pa.string(), TEXT)
                else np.array([row[c.name] for row in threads], np.int64)
                for c in TABLES["thread"].columns
            },
            "module": {
                "path": list(modules),
                "class": [kind for kind, _ in modules.values()],
                "parameters": np.array([count for _, count in modules.values()], np.int64),
            },
            "storage": {
                "pid": np.full(len(self._storages), self.pid, np.int64),
                "storage": np.array([address for address, _ in self._storages], np.int64),
                "name": [name for _, name in self._storages],
            },
            "stack": {
                "stack": np.array([i for _, i in new], np.int32),
                "frames": frames_column([text for text, _ in new]),
            },
        }
        tables = {name: to_table(TABLES[name], c) for name, c in columns.items()}
        return tables if stalls is None else {**tables, "stall": stalls}

    def _stalls(self) -> pa.Table | None:
        rows = dump_rows(self.log, self.first_ordinal)
        for row in rows:
            text = row.pop("frames")
            row["stack"] = self._texts.stack_id(text) if text else None
        return pa.Table.from_pylist(rows, TABLES["stall"].arrow()) if rows else None

    def thread_row(self, thread: ThreadLog) -> dict[str, Any] | None:
        """Returns the thread's row of the thread table so far; None without events."""
        return self._threads.get(self.thread_name(thread))

    def _note_presence(self) -> None:
        """Adds the main thread of a process that is awaited and that recorded no event."""
        process = self.log.process
        for thread in self.log.threads[:1] if self._is_awaited else ():
            self._threads[self.thread_name(thread)] = {
                "thread": self.thread_name(thread),
                "pid": self.pid,
                "native_id": thread.native_id,
                "name": "main",
                "kind": ThreadKind(thread.kind).name,
                "start_ns": process["start_ns"],
                "end_ns": max(process["start_ns"], process["end_ns"]),
            }

    def _note_thread(self, thread: ThreadLog, records: Records, kinds: NDArray[np.uint8]) -> None:
        """Extends the thread's row by these records."""
        starts, ends = records["start"], records["end"]
        possible = self._possible(starts)
        # A THREAD record left by compaction carries the time range of earlier records.
        spans = np.isin(kinds, _TIMED) | ((kinds == RecordKind.THREAD) & (ends > starts))
        spans &= possible
        if not spans.any():  # a backend's thread that only reported completions
            return
        named = take(records, kinds == RecordKind.THREAD)
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
            known["name"] = self._texts[int(named[-1]["name"])] or known["name"]
        known["start_ns"] = min(known["start_ns"], int(starts[spans].min()))
        ended = ends[spans & self._possible(ends)]
        latest = max(int(starts[spans].max()), int(ended.max(initial=0)))
        known["end_ns"] = max(known["end_ns"], latest)

    def _possible(self, instants: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns True for instants near the process's start; others are from damaged records."""
        start = int(self.log.process["start_ns"])
        return (instants >= start - MAX_TIME_NS) & (instants <= start + MAX_TIME_NS)

    # one table each ------------------------------------------------------------------------

    def _op(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = durations(rows)
        shapes, dtypes, devices = self._texts.signature(rows["signature"])
        return {
            "start_ns": rows["start"],
            "duration_ns": numbers(duration, INT64, unfinished),
            "self_ns": numbers(self_times(rows, duration), INT64, unfinished),
            "name": self._texts.dictionary(rows["name"]),
            "scope": enum_column(rows["scope"], OpScope),
            "depth": rows["depth"],
            "step": rows["step"],
            "phase": self._texts.dictionary(rows["phase"]),
            "module": self._texts.dictionary(rows["module"]),
            "sequence": numbers(rows["sequence"], INT64, rows["sequence"] == NO_SEQUENCE),
            "shapes": shapes,
            "dtypes": dtypes,
            "device": devices,
            "stack": self._texts.stacks(rows["stack"]),
            **self._launch(rows),
        }

    def _launch(self, rows: Records) -> dict[str, Any]:
        """Returns the call that launched each device activity; null for other ops."""
        on_device = rows["scope"] == OpScope.kernel
        instants = np.where(on_device, rows["extra"], 0)
        threads, codes = np.unique(np.where(on_device, rows["aux"], 0), return_inverse=True)
        first = self.first_ordinal - 1
        names = [thread_id(self.pid, first + int(one)) if one else "" for one in threads]
        return {
            "launch_ns": numbers(instants, INT64, instants == 0),
            "launch_thread": dictionary(codes.astype(np.int32), names),
        }

    def _collective(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = durations(rows)
        shapes, dtypes, _ = self._texts.signature(rows["signature"])
        group, size, peer, root, reduce_op, splits = self._texts.split(rows["aux"], 6)
        runnable = rows["depth"].astype(np.int64) - 1
        ends = np.array([self._completions.get(_call(row), _UNKNOWN) for row in rows])
        return {
            "start_ns": rows["start"],
            "duration_ns": numbers(duration, INT64, unfinished),
            "complete_ns": numbers(ends, INT64, ends == _UNKNOWN),
            "name": self._texts.dictionary(rows["name"]),
            "group": group,
            "group_size": integers(size),
            "sequence": rows["sequence"],
            "peer": integers(peer),
            "root": integers(root),
            "reduce_op": reduce_op,
            "splits": splits,
            "shapes": shapes,
            "dtypes": dtypes,
            "bytes": rows["extra"],
            "asynchronous": rows["scope"] == 1,
            "runnable_ns": numbers(runnable * RUNNABLE_UNIT_NS, INT64, runnable < 0),
            "step": rows["step"],
            "phase": self._texts.dictionary(rows["phase"]),
            "module": self._texts.dictionary(rows["module"]),
            "stack": self._texts.stacks(rows["stack"]),
        }

    def _phase(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = durations(rows)
        return {
            "start_ns": rows["start"],
            "duration_ns": numbers(duration, INT64, unfinished),
            "name": self._texts.dictionary(rows["name"]),
            "kind": enum_column(rows["scope"], PhaseKind),
            "depth": rows["depth"],
            "step": rows["step"],
            "module": self._texts.dictionary(rows["module"]),
        }

    def _gradient(self, rows: Records) -> dict[str, Any]:
        rows, grad_hash, param_hash = with_hashes(rows)
        _, dtypes, devices = self._texts.signature(rows["signature"])
        norms = np.ascontiguousarray(rows["sequence"]).view("<f8")
        return {
            "time_ns": rows["start"],
            "step": rows["step"],
            "parameter": self._texts.dictionary(rows["name"]),
            "norm": numbers(norms, FLOAT64, (rows["scope"] & GradientScope.NONE) != 0),
            "numel": rows["extra"],
            "dtype": dtypes,
            "device": devices,
            "optimizer": rows["aux"],
            "grad_hash": grad_hash,
            "param_hash": param_hash,
        }

    def _sampled(self, rows: Records) -> Iterator[tuple[str, pa.Table]]:
        """Yields the tables that consist of gradient records with a scope of their own."""
        for scope, table, columns in (
            (GradientScope.SAMPLE, "parameter", parameter_columns),
            (GradientScope.ACTIVATION, "activation", activation_columns),
            (GradientScope.NODE, "node", node_columns),
            (GradientScope.NODE, "fx", partial(fx_columns, stacks=self._texts.stacks)),
        ):
            fx = (rows["scope"] & GradientScope.NODE != 0) & (rows["depth"] == FX_NODE)
            mine = take(rows, (rows["scope"] & scope != 0) & (fx == (table == "fx")))
            if len(mine):
                found = columns(mine, self._texts.dictionary, self._texts.signature)
                yield table, to_table(TABLES[table], found)

    def _sync(self, rows: Records) -> dict[str, Any]:
        duration, unfinished = durations(rows)
        first = self.first_ordinal - 1
        # An unfinished join has the thread in the field of the object.
        joining = (rows["scope"] == SyncKind.thread_join) & (rows["aux"] == 0)
        other = np.where(joining, rows["extra"], rows["aux"])
        peers = [thread_id(self.pid, first + int(a)) if a else None for a in other]
        return {
            "start_ns": rows["start"],
            "duration_ns": numbers(duration, INT64, unfinished),
            "kind": enum_column(rows["scope"], SyncKind),
            "peer": peers,
            "object": numbers(rows["extra"], INT64, (rows["extra"] == 0) | joining),
            "stream": numbers(rows["sequence"], INT32, rows["sequence"] <= 0),
            "step": rows["step"],
            "stack": self._texts.stacks(rows["stack"]),
        }

    def _value(self, rows: Records) -> dict[str, Any]:
        return {
            "time_ns": rows["start"],
            "name": self._texts.dictionary(rows["name"]),
            "value": np.ascontiguousarray(rows["sequence"]).view("<f8"),
            "step": rows["step"],
        }

    @cached_property
    def _completions(self) -> dict[tuple[int, int, int], int]:
        """Call -> completion in ns, from all threads: any may record it."""
        return {
            _call(end): int(end["end"])
            for thread in self.log.threads
            for records in thread.records()
            for end in take(records, records["kind"] == RecordKind.COLLECTIVE_END)
        }


def _call(row: np.void) -> tuple[int, int, int]:
    """Returns the identity of a collective call within the process."""
    return int(row["name"]), int(row["aux"]), int(row["sequence"])
