"""Writes a made-up run of many ranks: to measure what opens, shows and analyses such runs.

    python benchmarks/generate_job.py RUN RANKS [THREADS] [STEPS]      (8 threads, 12 steps)

The ranks, eight to a host, train with tensor, data, pipeline and expert parallelism: each rank's
collectives begin when its work is done and complete when the last rank of the group has come.
Each host has its own clock. Three faults are planted: a straggler takes six times as long for its
forward pass as the others, one rank left no files, and one calls another collective than its group
in the last step. Equal arguments give equal runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.generate_run import PATTERN
from benchmarks.job_plan import KINDS, LAYERS, Faults, Job, Plan, plan_job
from lanescope.collector.compaction.catalogue import write_catalogue
from lanescope.collector.compaction.parquet import write_part
from lanescope.collector.format import schema
from tests.support.run_builder import START_NS, Builder, filled

PER_HOST = 8


@dataclass(frozen=True)
class _Rank:
    """What one process of the pool writes; instants are on the rank's own clock."""

    path: Path
    rank: int
    threads: int
    work: list[tuple[str, int, int, int]]
    calls: list[dict[str, Any]]


def generate_job(
    path: Path,
    ranks: int,
    threads: int = 8,
    steps: int = 12,
    *,
    faults: Faults | None = None,
    processes: int = 2,
) -> Path:
    """Writes the run. The number of ranks is a power of two."""
    plan = Plan.of(ranks)
    assert plan.ranks == ranks, "expected a power of two of ranks"
    faults = Faults.of(ranks) if faults is None else faults
    job = plan_job(plan, faults, steps)
    present = [rank for rank in range(ranks) if rank != faults.missing]
    builder = Builder(path, world_size=ranks, level="timing", complete=len(present) == ranks)
    names = _groups(builder, plan)
    last = int(job.now.max())
    for rank in present:
        host = rank // PER_HOST
        clock = {"host": f"boot-{host}/time-1", "offset_ns": -_offset(rank), "uncertainty_ns": 2000}
        start, end = START_NS + _offset(rank), last + _offset(rank)
        builder.process(
            rank, host=f"gpu-{host:03d}", engine="native", clock=clock, start_ns=start, end_ns=end
        )
    works = (_rank(path, job, rank, threads, names) for rank in present)
    with ProcessPoolExecutor(processes) as pool:
        for files in pool.map(_write, works, chunksize=8):
            builder.manifest["files"].update(files)
    builder.write()
    write_catalogue(path, builder.manifest)
    return path


def _offset(rank: int) -> int:
    """How far the clock of a rank's host is ahead of the axis."""
    return rank // PER_HOST * 1_234_567_891


def _groups(builder: Builder, plan: Plan) -> dict[tuple[str, int], tuple[str, list[int]]]:
    """Lists the process groups; returns name and ranks by dimension and rank."""
    everyone = list(range(plan.ranks))
    builder.manifest["groups"]["0"] = {"ranks": everyone, "description": "default_pg"}
    found: dict[tuple[str, int], tuple[str, list[int]]] = {}
    number = 0
    for dimension, groups in plan.groups().items():
        for ranks in groups.tolist():
            number += 1
            group = {"ranks": ranks, "description": f"mesh_{dimension}"}
            builder.manifest["groups"][str(number)] = group
            found |= {(dimension, rank): (str(number), ranks) for rank in ranks}
    return found


def _rank(
    path: Path,
    job: Job,
    rank: int,
    threads: int,
    names: dict[tuple[str, int], tuple[str, list[int]]],
) -> _Rank:
    offset = _offset(rank)
    work = [
        (kind, step, int(begin[rank]) + offset, int(end[rank]) + offset)
        for kind, step, begin, end in job.work
        if begin[rank] >= 0
    ]
    calls = []
    counts: Counter[tuple[str, str, int | None]] = Counter()
    last = max((call["step"] for call in job.calls), default=0)
    for call in job.calls:
        if not call["who"][rank]:
            continue
        group, ranks = names[call["dimension"], rank]
        odd = rank == job.faults.mismatched and call["step"] == last and call["dimension"] == "dp"
        begin, end = (int(call[at][rank]) + offset for at in ("begin", "end"))
        key = (group, "" if call["peer"] is None else call["name"], call["peer"])
        calls.append(
            {
                "start_ns": begin,
                "duration_ns": end - begin,
                "complete_ns": end,
                "name": "all_gather" if odd else call["name"],
                "group": group,
                "group_size": len(ranks),
                "sequence": counts[key],
                "peer": call["peer"],
                "reduce_op": "sum" if call["name"] == "all_reduce" and not odd else "",
                "shapes": "[1048576]",
                "dtypes": "float32",
                "bytes": 4 << 20,
                "step": call["step"],
                "phase": call["kind"],
            }
        )
        counts[key] += 1
    return _Rank(path, rank, threads, work, calls)


def _write(rank: _Rank) -> dict[str, schema.File]:
    files: dict[str, schema.File] = {}
    extents = {}
    for ordinal in range(rank.threads):
        thread = schema.thread_id(1000 + rank.rank, ordinal)
        work = rank.work if ordinal == 0 else _beside(rank.work, ordinal)
        tables = {"op": _ops(work), "phase": _phases(work)}
        if ordinal == 0:
            if rank.calls:
                tables["collective"] = {k: [one[k] for one in rank.calls] for k in rank.calls[0]}
            tables |= _learning(work)
        for table, columns in tables.items():
            folder = f"{schema.rank_folder(rank.rank)}/{schema.thread_folder(thread)}"
            name = f"{folder}/{schema.part_file(table, 0)}"
            files[name] = write_part(rank.path / name, table, filled(table, columns))
        extents[thread] = work[0][2], work[-1][3]
    columns = {
        "thread": list(extents),
        "pid": 1000 + rank.rank,
        "native_id": [1000 + rank.rank + ordinal for ordinal in range(rank.threads)],
        "name": ["MainThread", *(f"loader-{n}" for n in range(1, rank.threads))],
        "kind": ["main", *["python"] * (rank.threads - 1)],
        "start_ns": [start for start, _ in extents.values()],
        "end_ns": [end for _, end in extents.values()],
    }
    name = f"{schema.rank_folder(rank.rank)}/{schema.THREAD.name}.parquet"
    rows = filled(schema.THREAD.name, columns)
    files[name] = write_part(rank.path / name, schema.THREAD.name, rows)
    return files


def _beside(work: Sequence[tuple[str, int, int, int]], ordinal: int) -> list[Any]:
    """A loader's work: the data of the next step, for as long as the main thread computes."""
    steps = dict.fromkeys(step for _, step, _, _ in work)
    ends = {step: max(end for _, of, _, end in work if of == step) for step in steps}
    begins = {step: min(begin for _, of, begin, _ in work if of == step) for step in steps}
    found = []
    for step in steps:
        piece = (ends[step] - begins[step]) // 12
        for number in range(10):
            begin = begins[step] + number * piece + ordinal * 1_000
            found.append(("data", step, begin, begin + piece * 9 // 10))
    return found


def _template(kind: str) -> dict[str, npt.NDArray[Any]]:
    """The calls of one piece of work, as shares of its length."""
    phase = KINDS.index(kind)
    rows = np.flatnonzero(PATTERN.phase == phase)
    if kind in ("forward", "backward"):  # PATTERN has six layers of them
        units = np.unique(PATTERN.unit[rows])
        rows = rows[np.isin(PATTERN.unit[rows], units[1 : 1 + (len(units) - 2) // 6])]
    units, unit = np.unique(PATTERN.unit[rows], return_inverse=True)
    lengths = PATTERN.unit_ns[units] / PATTERN.unit_ns[units].sum()
    first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    scale = lengths[unit] * 0.95
    return {
        "begin": first[unit] + PATTERN.begin[rows] * scale,
        "end": first[unit] + (PATTERN.begin[rows] + PATTERN.length[rows]) * scale,
        "own": PATTERN.own[rows] * scale,
        "depth": PATTERN.depth[rows],
        "name": PATTERN.name[rows],
    }


_TEMPLATES = {kind: _template(kind) for kind in KINDS}
OPS_PER_STEP = sum(
    len(_TEMPLATES[kind]["name"]) * (LAYERS if kind in ("forward", "backward") else 1)
    for kind in KINDS
)


def _ops(work: Sequence[tuple[str, int, int, int]]) -> dict[str, Any]:
    pieces: dict[str, list[npt.NDArray[Any]]] = {}
    for kind, template in _TEMPLATES.items():
        mine = [one for one in work if one[0] == kind]
        if not mine:
            continue
        begin = np.array([one[2] for one in mine])[:, None]
        length = np.array([one[3] for one in mine])[:, None] - begin
        low, high = ((length * template[at]).astype(np.int64) for at in ("begin", "end"))
        count = len(template["name"])
        for name, value in {
            "start_ns": begin + low,
            "duration_ns": high - low,
            "self_ns": (length * template["own"]).astype(np.int64),
            "depth": np.tile(template["depth"], (len(mine), 1)),
            "name": np.tile(template["name"], (len(mine), 1)),
            "step": np.repeat([one[1] for one in mine], count),
            "phase": np.full(len(mine) * count, KINDS.index(kind)),
        }.items():
            pieces.setdefault(name, []).append(value.ravel())
    columns: dict[str, Any] = {name: np.concatenate(one) for name, one in pieces.items()}
    order = np.lexsort((columns["depth"], columns["start_ns"]))
    columns = {name: one[order] for name, one in columns.items()}
    backward = (columns["phase"] == KINDS.index("backward")) & (columns["depth"] == 0)
    columns["scope"] = _texts(backward.astype(np.int32), ("function", "backward"))
    columns["name"] = _texts(columns["name"], PATTERN.names)
    columns["phase"] = _texts(columns["phase"], KINDS)
    return columns


def _phases(work: Sequence[tuple[str, int, int, int]]) -> dict[str, Any]:
    """One phase for each kind of work of a step, from its first piece to the end of its last."""
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for kind, step, begin, end in work:
        low, high = found.get((step, kind), (begin, end))
        found[step, kind] = min(low, begin), max(high, end)
    kinds = np.array([KINDS.index(kind) for _, kind in found], np.int32)
    return {
        "start_ns": [low for low, _ in found.values()],
        "duration_ns": [high - low for low, high in found.values()],
        "name": _texts(kinds, KINDS),
        "kind": _texts(kinds, KINDS),
        "step": [step for step, _ in found],
    }


def _learning(work: Sequence[tuple[str, int, int, int]]) -> dict[str, dict[str, Any]]:
    """Gradient norms and losses, the same on all ranks."""
    ends = {step: end for kind, step, _, end in work if kind == "backward"}
    names = [f"blocks.{layer}.weight" for layer in range(LAYERS)]
    steps = np.array(list(ends))
    at = np.array(list(ends.values()))
    return {
        "gradient": {
            "time_ns": np.repeat(at, len(names)),
            "step": np.repeat(steps, len(names)),
            "parameter": names * len(steps),
            "norm": np.repeat(1 / (1 + steps), len(names)),
            "numel": 1 << 20,
            "dtype": "float32",
            "device": "cuda:0",
            "optimizer": 0,
        },
        "value": {"time_ns": at, "name": "loss", "value": 3 / (1 + steps), "step": steps},
    }


def _texts(codes: npt.NDArray[Any], words: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words))


def main() -> None:
    """Writes what the arguments say."""
    if not 3 <= len(sys.argv) <= 5:
        raise SystemExit(__doc__)
    generate_job(Path(sys.argv[1]), *map(int, sys.argv[2:]))


if __name__ == "__main__":
    main()
