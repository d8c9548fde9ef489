"""Writes run directories through the real schema, without torch and without recording.

`Builder` takes rows of any table, for any rank and thread, and fills what a test does not care
about. `write_run` makes a plausible training run of any size, the same for the same arguments.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lanescope.collector.compaction.parquet import ROW_GROUP_ROWS
from lanescope.collector.format import schema

HOST = "boot-1/time-1"
START_NS = 5_000_000_000_000  # a monotonic clock some 80 minutes after boot

_DEFAULTS: dict[str, Any] = {"scope": "function", "kind": "user", "device": "cpu"}
_NULL_BY_DEFAULT = {
    "complete_ns",
    "sequence",
    "peer",
    "object",
    "root",
    "stack",
    "grad_hash",
    "param_hash",
    "owner",
    "collective",
    "cpu",
    "launch_ns",
    "expected",
}


class Builder:
    """A run in the making: processes, threads and rows, then `write`."""

    def __init__(self, path: Path | str, *, world_size: int = 1, **manifest: Any) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = {
            "format": schema.FORMAT_VERSION,
            "id": "synthetic",
            "created": "2026-01-02T03:04:05+00:00",
            "command": ["python", "train.py"],
            "level": "timing",
            "options": {},
            "world_size": world_size,
            "complete": True,
            "exit_status": 0,
            "notes": [],
            "axis": {"clock_identity": HOST, "wall_minus_monotonic_ns": 0},
            "processes": [],
            "groups": {},
            "files": {},
            **manifest,
        }
        self._tables: dict[tuple[int, str | None, str], list[pa.Table]] = {}
        self._threads: dict[tuple[int, str], dict[str, Any]] = {}

    def process(self, rank: int = 0, pid: int | None = None, **fields: Any) -> int:
        """Lists a process and returns its pid; `clock` and `coverage` may be given in part."""
        pid = 1000 + rank if pid is None else pid
        clock = {
            "offset_ns": 0,
            "drift_ppb": 0.0,
            "uncertainty_ns": 0,
            "calibrated": True,
            "host": HOST,
            **fields.pop("clock", {}),
        }
        process = {
            "rank": rank,
            "pid": pid,
            "parent_pid": 1,
            "role": "rank",
            "host": "node-0",
            "engine": "portable",
            "start_ns": START_NS,
            "end_ns": START_NS,
            "closed": True,
            "ended": "exit",
            "exception": "",
            "argv": ["train.py"],
            "python": "3.11.7",
            "torch": "2.13.0",
            "modules_root": "",
            "clock": clock,
            "coverage": {},
            **fields,
        }
        self.manifest["processes"].append(process)
        return pid

    def thread(self, rank: int = 0, pid: int | None = None, ordinal: int = 0, **fields: Any) -> str:
        """Names a thread (and lists its process where that was not done) and returns its id."""
        pid = 1000 + rank if pid is None else pid
        if not any((p["rank"], p["pid"]) == (rank, pid) for p in self.manifest["processes"]):
            self.process(rank, pid)
        thread = schema.thread_id(pid, ordinal)
        self._threads[rank, thread] = {
            "thread": thread,
            "pid": pid,
            "native_id": pid + ordinal,
            "name": "MainThread" if ordinal == 0 else f"Thread-{ordinal}",
            "kind": "main" if ordinal == 0 else "python",
            **fields,
        }
        return thread

    def rows(self, table: str, rank: int, thread: str | None, /, **columns: Any) -> None:
        """Adds rows: each column a sequence, or one value for all rows. Missing ones are filled.

        Texts are "", numbers 0, flags false, what may be null is null; `self_ns` is the duration.
        """
        shape = schema.TABLES[table]
        count = max((len(v) for v in columns.values() if _is_sequence(v)), default=1)
        if "duration_ns" in columns:
            columns.setdefault("self_ns", columns["duration_ns"])
        arrays = [_array(columns.get(c.name), c, count) for c in shape.columns]
        unknown = set(columns) - {c.name for c in shape.columns} - {"self_ns"}
        assert not unknown, f"{table} has no {unknown}"
        key = (rank, thread, table)
        self._tables.setdefault(key, []).append(pa.table(arrays, schema=shape.arrow()))
        if thread is not None and (rank, thread) not in self._threads:
            pid, _, ordinal = thread.partition("-")
            self.thread(rank, int(pid), int(ordinal))

    def row(self, table: str, rank: int, thread: str | None, /, **columns: Any) -> None:
        """Adds one row."""
        self.rows(table, rank, thread, **{name: [value] for name, value in columns.items()})

    def op(
        self,
        start: int,
        duration: int | None,
        name: str = "aten::mm",
        *,
        rank: int = 0,
        thread: str = "1000-0",
        **columns: Any,
    ) -> None:
        """Adds one op."""
        self.row("op", rank, thread, start_ns=start, duration_ns=duration, name=name, **columns)

    def phase(
        self,
        start: int,
        duration: int | None,
        kind: str = "backward",
        *,
        rank: int = 0,
        thread: str = "1000-0",
        name: str | None = None,
        **columns: Any,
    ) -> None:
        """Adds one phase, by default named like its kind."""
        self.row(
            "phase",
            rank,
            thread,
            start_ns=start,
            duration_ns=duration,
            kind=kind,
            name=kind if name is None else name,
            **columns,
        )

    def write(self) -> Path:
        """Writes thread tables, Parquet files and manifest; returns the run's path."""
        for rank in sorted({rank for rank, _ in self._threads}):
            threads = [self._thread_row(r, t) for (r, t) in self._threads if r == rank]
            columns = {name: [row[name] for row in threads] for name in threads[0]}
            self.rows("thread", rank, None, **columns)
        for (rank, thread, table), pieces in self._tables.items():
            folder = schema.rank_folder(rank)
            if thread is None:
                name = f"{folder}/{table}.parquet"
            else:
                name = f"{folder}/{schema.thread_folder(thread)}/{schema.part_file(table, 0)}"
            self._file(name, pa.concat_tables(pieces).unify_dictionaries().combine_chunks())
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.manifest, indent=1)
        (self.path / schema.MANIFEST).write_text(text, encoding="utf-8")
        return self.path

    def _thread_row(self, rank: int, thread: str) -> dict[str, Any]:
        row = dict(self._threads[rank, thread])
        low, high = [], []
        for (r, t, _), pieces in self._tables.items():
            for piece in pieces if (r, t) == (rank, thread) else ():
                names = set(piece.column_names)
                start = piece["start_ns" if "start_ns" in names else "time_ns"].to_numpy()
                if not len(start):
                    continue
                end = start
                if "duration_ns" in names:
                    length = piece["duration_ns"].fill_null(0).to_numpy()
                    end = start + length
                low.append(int(start.min()))
                high.append(int(end.max()))
        row.setdefault("start_ns", min(low, default=START_NS))
        row.setdefault("end_ns", max(high, default=row["start_ns"]))
        return row

    def _file(self, name: str, table: pa.Table) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS, write_page_checksum=True
        )
        data = path.read_bytes()
        self.manifest["files"][name] = {
            "bytes": len(data),
            "rows": table.num_rows,
            "sha256": hashlib.sha256(data).hexdigest(),
        }


def _is_sequence(value: object) -> bool:
    return isinstance(value, (Sequence, np.ndarray, pa.Array)) and not isinstance(value, str)


def _array(value: Any, column: schema.Column, count: int) -> pa.Array:
    if isinstance(value, pa.Array):
        return value.cast(column.type)
    if value is None:
        if column.name in _NULL_BY_DEFAULT:
            return pa.nulls(count, column.type)
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            value = _DEFAULTS.get(column.name, "")
        else:
            value = pa.scalar(0).cast(column.type).as_py()
    if not _is_sequence(value):
        value = [value] * count
    plain = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    array = pa.array(value, plain)
    return array.dictionary_encode() if pa.types.is_dictionary(column.type) else array


OP_NAMES = (
    "aten::addmm",
    "aten::native_layer_norm",
    "aten::gelu",
    "aten::mul",
    "aten::add",
    "aten::view",
    "aten::_softmax",
    "aten::transpose",
    "aten::native_dropout",
    "aten::sum",
    "aten::bmm",
    "c10d::allreduce_",
)
PHASES = (("data", 0.1), ("forward", 0.3), ("backward", 0.45), ("optimizer", 0.15))
PARAMETERS = ("embed.weight", "block.0.weight", "block.0.bias", "head.weight")


def write_run(
    path: Path | str,
    *,
    ranks: int = 2,
    threads: int = 2,
    steps: int = 3,
    ops: int = 40,
    step_ns: int = 1_000_000,
    seed: int = 0,
    gradient_scale: float = 1.0,
) -> Path:
    """A training run: every rank and thread does `ops` ops in each of `steps` steps.

    A step lasts `step_ns` plus a tenth of that between steps, and is divided into PHASES. Ops come
    in pairs, an outer one and one nested within it, and fill the step. Each thread of a rank runs
    5 % of a step later than the one before, so that their backward phases overlap by a known
    amount; each rank starts 1 us later than the one before. Thread 0 of a rank also has one
    all_reduce per step (in the backward phase), gradient norms of PARAMETERS and a loss value;
    the other threads are started and joined by it. Equal arguments give equal files.
    """
    assert ops % 2 == 0, "ops come in pairs"
    assert step_ns >= 100 * ops, "no room for the ops"
    builder = Builder(path, world_size=ranks)
    for rank in range(ranks):
        names = [builder.thread(rank, ordinal=k) for k in range(threads)]
        first = START_NS + rank * 1000
        end = first + steps * (step_ns + step_ns // 10) + threads * step_ns
        builder.manifest["processes"][rank]["end_ns"] = end
        for ordinal, thread in enumerate(names):
            begin = first + ordinal * (step_ns // 20)
            starts = begin + np.arange(steps, dtype=np.int64) * (step_ns + step_ns // 10)
            _phases(builder, rank, thread, starts, step_ns)
            _ops(builder, rank, thread, starts, step_ns, ops, seed + 1000 * rank + ordinal)
        _extras(builder, rank, names, first, step_ns, steps, ranks, seed, gradient_scale)
    return builder.write()


def phase_bounds(step_ns: int) -> list[tuple[str, int, int]]:
    """(kind, start, end) of the phases within a step."""
    bounds, at = [], 0
    for position, (kind, share) in enumerate(PHASES):
        end = step_ns if position == len(PHASES) - 1 else at + int(step_ns * share)
        bounds.append((kind, at, end))
        at = end
    return bounds


def _phases(builder: Builder, rank: int, thread: str, starts: Any, step_ns: int) -> None:
    bounds = phase_bounds(step_ns)
    kinds = [kind for kind, _, _ in bounds]
    low = np.array([a for _, a, _ in bounds])
    high = np.array([b for _, _, b in bounds])
    steps = len(starts)
    builder.rows(
        "phase",
        rank,
        thread,
        start_ns=(starts[:, None] + low).ravel(),
        duration_ns=np.tile(high - low, steps),
        name=[{"optimizer": "AdamW.step"}.get(kind, kind) for kind in kinds] * steps,
        kind=kinds * steps,
        step=np.repeat(np.arange(steps), len(kinds)),
    )


def _ops(
    builder: Builder, rank: int, thread: str, starts: Any, step_ns: int, ops: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    steps, pairs = len(starts), ops // 2
    slot = step_ns // pairs
    outer = (starts[:, None] + np.arange(pairs) * slot).ravel()
    count = len(outer)
    long = random.integers(slot // 2, slot, count)
    late = random.integers(1, slot // 8, count)
    short = random.integers(1, slot // 4, count)
    offset = (outer - np.repeat(starts, pairs)).astype(np.int64)
    edges = [end for _, _, end in phase_bounds(step_ns)]
    phase = np.searchsorted(edges, offset, side="right").clip(max=len(PHASES) - 1)

    def pair(first: Any, second: Any) -> Any:
        return np.stack([first, second], axis=1).ravel()

    kind = pair(phase, phase)
    names = random.integers(0, len(OP_NAMES), 2 * count).astype(np.int32)
    backward = (kind == 2).astype(np.int32)
    sequence = np.repeat(np.arange(count, dtype=np.int64), 2)
    none = pa.array(np.arange(2 * count) % 2 == 1)
    builder.rows(
        "op",
        rank,
        thread,
        start_ns=pair(outer, outer + late),
        duration_ns=pair(long, short),
        self_ns=pair(long - short, short),
        name=_texts(names, OP_NAMES),
        scope=_texts(backward, ("function", "backward")),
        depth=np.tile(np.array([0, 1], np.int16), count),
        step=np.repeat(np.arange(steps), ops),
        phase=_texts(kind.astype(np.int32), [kind for kind, _ in PHASES]),
        module=_texts((names % 4).astype(np.int32), ("", "embed", "block.0", "head")),
        sequence=pa.array(sequence, mask=np.asarray(none)),
        shapes=_texts((names % 3).astype(np.int32), ("", "[4, 8] [8]", "[4, 128, 256]")),
        dtypes=_texts((names % 3).astype(np.int32), ("", "float32 float32", "float32")),
    )


def _texts(index: Any, words: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index), pa.array(words, pa.string()))


def _extras(
    builder: Builder,
    rank: int,
    threads: list[str],
    first: int,
    step_ns: int,
    steps: int,
    ranks: int,
    seed: int,
    scale: float,
) -> None:
    main = threads[0]
    number = np.arange(steps, dtype=np.int64)
    starts = first + number * (step_ns + step_ns // 10)
    bounds = {kind: (a, b) for kind, a, b in phase_bounds(step_ns)}
    backward = starts + bounds["backward"][0]
    builder.rows(
        "collective",
        rank,
        main,
        start_ns=backward + step_ns // 5,
        duration_ns=step_ns // 100,
        # Rank r's call completes with the last one, which is that of the highest rank.
        complete_ns=backward + step_ns // 4 + (ranks - 1 - rank) * 1000,
        name="all_reduce",
        group="0",
        group_size=ranks,
        sequence=number,
        shapes="[4096]",
        dtypes="float32",
        bytes=16384,
        asynchronous=True,
        step=number,
        phase="backward",
    )
    # All ranks see the same gradients, as after an all_reduce.
    norms = np.random.default_rng(seed).random((steps, len(PARAMETERS))) * scale
    builder.rows(
        "gradient",
        rank,
        main,
        time_ns=np.repeat(starts + bounds["optimizer"][0], len(PARAMETERS)),
        step=np.repeat(number, len(PARAMETERS)),
        parameter=list(PARAMETERS) * steps,
        norm=norms.ravel(),
        numel=1024,
        dtype="float32",
    )
    builder.rows(
        "value",
        rank,
        main,
        time_ns=starts + step_ns - 1,
        name="loss",
        value=2.0 / (number + 1),
        step=number,
    )
    for ordinal, thread in enumerate(threads[1:], start=1):
        begin = first + ordinal * (step_ns // 20)
        end = begin + steps * (step_ns + step_ns // 10)
        builder.row(
            "sync", rank, main, start_ns=begin - 10, duration_ns=0, kind="thread_start", peer=thread
        )
        builder.row(
            "sync", rank, thread, start_ns=begin - 5, duration_ns=0, kind="thread_begin", peer=main
        )
        builder.row("sync", rank, thread, start_ns=end, duration_ns=0, kind="thread_end", peer=None)
        builder.row(
            "sync", rank, main, start_ns=end - 100, duration_ns=120, kind="thread_join", peer=thread
        )
    frames = [[{"file": "train.py", "line": 12, "function": "main"}]]
    builder.rows("stack", rank, None, stack=[0], frames=frames)
    builder.rows(
        "module",
        rank,
        None,
        path=["embed", "block.0", "head"],
        parameters=[1024, 2048, 1024],
        **{"class": ["torch.nn.Embedding", "Block", "torch.nn.Linear"]},
    )
