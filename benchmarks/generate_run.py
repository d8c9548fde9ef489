"""Writes a run of any size through the real schema, with bounded memory: to measure viewers on.

    python benchmarks/generate_run.py RUN EVENTS [LANES]      (64 lanes by default, 8 per rank)

Every lane is a thread that trains: data, forward, backward and optimizer phases, and in them ops as
a small transformer dispatches them, nested up to three deep, with durations from 2 us to some 300.
Equal arguments give equal runs. One slice of 1 ns, PROBE, stands alone in a row of the first lane,
in the middle of the run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lanescope.collector.compaction.parquet import write_part
from lanescope.collector.format import schema
from lanescope.webapp.runs.types import Int64Array
from tests.support.synthetic import START_NS, Builder

LANES_PER_RANK = 8
PART = 1_000_000
"""Rows of a part file, at most: what one lane needs in memory at once."""

PROBE = "probe::one_ns"
PROBE_DEPTH = 3
"""One deeper than all others."""

Call = tuple[str, float, tuple[Any, ...]]  # name, share of its parent's (or 100 us), inner calls


def _call(name: str, share: float, *inner: Call) -> Call:
    return name, share, inner


_LINEAR = _call(
    "aten::linear",
    0.9,
    _call("aten::t", 0.05, _call("aten::transpose", 0.6)),
    _call("aten::addmm", 0.85),
)
_NORM = _call("aten::layer_norm", 0.3, _call("aten::native_layer_norm", 0.9))
_ATTEND = _call(
    "aten::scaled_dot_product_attention",
    1.6,
    _call("aten::bmm", 0.35),
    _call("aten::softmax", 0.2, _call("aten::_softmax", 0.9)),
    _call("aten::bmm", 0.35),
)
_ADD, _GELU = _call("aten::add", 0.08), _call("aten::gelu", 0.25)
_DROP = _call("aten::dropout", 0.2, _call("aten::native_dropout", 0.8))
_BLOCK = (_NORM, _LINEAR, _ATTEND, _LINEAR, _DROP, _ADD, _NORM, _LINEAR, _GELU, _LINEAR, _ADD)


def _node(name: str, share: float, *inner: str) -> Call:
    return _call(name, share, *(_call(one, 0.9 / len(inner)) for one in inner))


_MM = _node("AddmmBackward0", 1.5, "aten::mm", "aten::mm", "aten::sum")
_BLOCK_BACK = (
    _node("AddBackward0", 0.04, "aten::detach"),
    _MM,
    _node("GeluBackward0", 0.3, "aten::gelu_backward"),
    _MM,
    _node("NativeLayerNormBackward0", 0.5, "aten::native_layer_norm_backward"),
    _node("NativeDropoutBackward0", 0.2, "aten::native_dropout_backward"),
    _MM,
    _node("BmmBackward0", 1.2, "aten::bmm", "aten::bmm"),
    _node("SoftmaxBackward0", 0.4, "aten::_softmax_backward_data"),
    _node("BmmBackward0", 1.2, "aten::bmm", "aten::bmm"),
    _MM,
    _node("torch::autograd::AccumulateGrad", 0.1, "aten::add_"),
)
_STEP = tuple(
    _call(name, 0.6)
    for name in (
        "aten::_foreach_lerp_",
        "aten::_foreach_mul_",
        "aten::_foreach_addcmul_",
        "aten::_foreach_sqrt",
        "aten::_foreach_addcdiv_",
    )
)
_DATA = (_call("aten::stack", 0.3, _call("aten::cat", 0.8)), _call("aten::to", 0.2))
LAYERS = 6
PHASES: tuple[tuple[str, tuple[Call, ...]], ...] = (
    ("data", _DATA),
    ("forward", (_call("aten::embedding", 0.3), *_BLOCK * LAYERS, _LINEAR)),
    ("backward", _BLOCK_BACK * LAYERS),
    ("optimizer", _STEP * 4),
)


@dataclass(frozen=True, eq=False)
class Pattern:
    """One step of a thread: its calls in order of time, each within its unit (an outermost op)."""

    names: tuple[str, ...]
    name: npt.NDArray[np.int32]
    depth: npt.NDArray[np.int16]
    unit: Int64Array
    begin: npt.NDArray[np.float64]  # share of the unit
    length: npt.NDArray[np.float64]
    own: npt.NDArray[np.float64]
    phase: npt.NDArray[np.int32]
    unit_ns: npt.NDArray[np.float64]
    unit_phase: npt.NDArray[np.int32]

    @classmethod
    def of(cls, phases: tuple[tuple[str, tuple[Call, ...]], ...]) -> Pattern:
        """The pattern of these phases."""
        rows: list[tuple[str, int, int, float, float, float, int]] = []
        units: list[tuple[float, int]] = []

        def add(call: Call, depth: int, begin: float, length: float, phase: int) -> None:
            inner = [one[1] * length for one in call[2]]
            unit = len(units) - 1
            rows.append((call[0], depth, unit, begin, length, length - sum(inner), phase))
            at = begin + (length - sum(inner)) * 0.3
            for one, share in zip(call[2], inner, strict=True):
                add(one, depth + 1, at, share, phase)
                at += share

        for phase, (_, calls) in enumerate(phases):
            for call in calls:
                units.append((call[1] * 100_000, phase))
                add(call, 0, 0.0, 1.0, phase)
        names = tuple(dict.fromkeys(row[0] for row in rows))
        columns = list(zip(*rows, strict=True))
        return cls(
            names,
            np.array([names.index(name) for name in columns[0]], np.int32),
            np.array(columns[1], np.int16),
            np.array(columns[2], np.int64),
            *(np.array(columns[k]) for k in (3, 4, 5)),
            np.array(columns[6], np.int32),
            np.array([ns for ns, _ in units]),
            np.array([phase for _, phase in units], np.int32),
        )


PATTERN = Pattern.of(PHASES)


@dataclass(frozen=True)
class Lane:
    """What one process of the pool writes."""

    path: Path
    rank: int
    thread: str
    steps: int
    seed: int
    probe: bool


def generate(path: Path, events: int, lanes: int = 64, processes: int = 2) -> Path:
    """Writes the run; at least `events` ops, and a few phases for every hundred."""
    builder = Builder(path, world_size=-(-lanes // LANES_PER_RANK))
    per_step = len(PATTERN.name)
    steps = max(1, -(-events // (lanes * per_step)))
    jobs = []
    for number in range(lanes):
        rank, ordinal = divmod(number, LANES_PER_RANK)
        thread = schema.thread_id(1000 + rank, ordinal)
        jobs.append(Lane(path, rank, thread, steps, number, number == 0))
    with ProcessPoolExecutor(processes) as pool:
        for job, (files, start, end) in zip(jobs, pool.map(_write, jobs), strict=True):
            ordinal = int(job.thread.partition("-")[2])
            builder.thread(job.rank, ordinal=ordinal, start_ns=start, end_ns=end)
            builder.manifest["files"].update(files)
    for process in builder.manifest["processes"]:
        process["end_ns"] = START_NS
    return builder.write()


def _write(lane: Lane) -> tuple[dict[str, schema.File], int, int]:
    files: dict[str, schema.File] = {}
    folder = f"{schema.rank_folder(lane.rank)}/{schema.thread_folder(lane.thread)}"
    end = START_NS
    for part, (ops, phases) in enumerate(_parts(lane)):
        for table, columns in (("op", ops), ("phase", phases)):
            name = f"{folder}/{schema.part_file(table, part)}"
            rows = _table(table, columns)
            files[name] = write_part(lane.path / name, table, rows)
        end = int(phases["start_ns"][-1] + phases["duration_ns"][-1])
    return files, START_NS, end


def _parts(lane: Lane) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    random = np.random.default_rng(lane.seed)
    pattern = PATTERN
    at = START_NS + lane.seed * 40_000
    at_once = max(1, PART // len(pattern.name))
    for first in range(0, lane.steps, at_once):
        count = min(at_once, lane.steps - first)
        length = pattern.unit_ns * random.lognormal(-0.05, 0.35, (count, len(pattern.unit_ns)))
        lengths = length.astype(np.int64) + 100
        gaps = random.integers(200, 6_000, lengths.shape)
        gaps[:, 0] += 250_000  # between steps
        ends = at + np.cumsum((lengths + gaps).ravel()).reshape(lengths.shape)
        begins = ends - lengths
        at = int(ends[-1, -1])
        yield _ops(lane, pattern, first, begins, lengths), _phases(pattern, first, begins, ends)


def _ops(
    lane: Lane, pattern: Pattern, first: int, begins: Int64Array, lengths: Int64Array
) -> dict[str, Any]:
    count = len(begins)
    whole = lengths[:, pattern.unit]
    low = (whole * pattern.begin).astype(np.int64)
    high = (whole * (pattern.begin + pattern.length)).astype(np.int64)
    columns: dict[str, Any] = {
        "start_ns": (begins[:, pattern.unit] + low).ravel(),
        "duration_ns": (high - low).ravel(),
        "self_ns": (whole * pattern.own).astype(np.int64).ravel(),
        "depth": np.tile(pattern.depth, count),
        "name": np.tile(pattern.name, count),
        "scope": np.tile(((pattern.phase == 2) & (pattern.depth == 0)).astype(np.int32), count),
        "step": np.repeat(np.arange(first, first + count), len(pattern.name)),
        "phase": np.tile(pattern.phase, count),
    }
    middle = lane.steps // 2
    if lane.probe and first <= middle < first + count:
        # Within the first op that has two levels below it.
        inner = int(np.flatnonzero(pattern.depth == PROBE_DEPTH - 1)[0])
        place = (middle - first) * len(pattern.name) + inner
        values = {
            "start_ns": columns["start_ns"][place] + columns["duration_ns"][place] // 2,
            "duration_ns": 1,
            "self_ns": 1,
            "depth": PROBE_DEPTH,
            "name": len(pattern.names),
        }
        for name, column in columns.items():
            columns[name] = np.insert(column, place + 1, values.get(name, column[place]))
    return columns


def _phases(pattern: Pattern, first: int, begins: Int64Array, ends: Int64Array) -> dict[str, Any]:
    unit = np.flatnonzero(np.diff(pattern.unit_phase, prepend=-1))
    last = np.append(unit[1:], len(pattern.unit_phase)) - 1
    low, high = begins[:, unit] - 100, ends[:, last] + 100
    return {
        "start_ns": low.ravel(),
        "duration_ns": (high - low).ravel(),
        "name": np.tile(np.arange(len(PHASES), dtype=np.int32), len(begins)),
        "kind": np.tile(np.arange(len(PHASES), dtype=np.int32), len(begins)),
        "step": np.repeat(np.arange(first, first + len(begins)), len(PHASES)),
    }


_KINDS = [kind for kind, _ in PHASES]
_TEXTS = {
    ("op", "name"): [*PATTERN.names, PROBE],
    ("op", "scope"): ["function", "backward"],
    ("op", "phase"): _KINDS,
    ("phase", "name"): _KINDS,
    ("phase", "kind"): _KINDS,
}


def _table(table: str, columns: dict[str, Any]) -> pa.Table:
    count = len(columns["start_ns"])
    arrays = []
    for column in schema.TABLES[table].columns:
        value = columns.get(column.name)
        if pa.types.is_dictionary(column.type):
            words = _TEXTS.get((table, column.name), [""])
            codes = np.zeros(count, np.int32) if value is None else value
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words)))
        elif value is not None:
            arrays.append(pa.array(value, column.type))
        elif column.name in ("sequence", "stack"):
            arrays.append(pa.nulls(count, column.type))
        else:
            arrays.append(pa.array(np.zeros(count), pa.float64()).cast(column.type))
    return pa.table(arrays, schema=schema.TABLES[table].arrow())


def main() -> None:
    """Writes what the arguments say."""
    if not 3 <= len(sys.argv) <= 4:
        raise SystemExit(__doc__)
    lanes = int(sys.argv[3]) if len(sys.argv) == 4 else 64
    generate(Path(sys.argv[1]), int(sys.argv[2]), lanes)


if __name__ == "__main__":
    main()
