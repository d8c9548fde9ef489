"""Two long runs with the values of their ops, compared: seconds and memory of `lanescope diff`.

    python benchmarks/bench_diff.py [EVENTS]      (5 million ops in each run by default)

Both runs are equal but for one hash in the middle of a lane, so that everything is paired and
compared to the end; two of five ops, the innermost ones, have a tensor.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.generate_run import generate
from lanescope.collector.compaction.parquet import write_part
from lanescope.collector.format import schema

EVENTS = 5_000_000
LANES = 8
MAX_S, MAX_GB = 60, 4


def with_values(path: Path, *, planted: bool) -> None:
    """Adds a tensor table to each op part of a run; `planted` changes one hash."""
    manifest = json.loads((path / schema.MANIFEST).read_text())
    shape = schema.TABLES["tensor"].arrow()
    parts = sorted(name for name in manifest["files"] if "/op-" in name)
    for number, name in enumerate(parts):
        ops = pq.read_table(path / name, columns=["start_ns", "depth"])
        depth = ops["depth"].to_numpy()
        rows = np.flatnonzero(np.append(depth[1:] <= depth[:-1], True) & (depth > 0))
        count = len(rows)
        bits = np.random.default_rng(number).integers(1, 1 << 62, count)
        if planted and number == len(parts) // 2:
            bits[count // 2] += 1
        known = {
            "start_ns": ops["start_ns"].to_numpy()[rows],
            "depth": depth[rows],
            "hash": bits,
            "numel": np.full(count, 4),
            "mean": np.full(count, 0.5),
            "l2": np.full(count, 1.0),
        }
        texts = {"position": "out0", "shape": "[4]", "dtype": "float32"}
        columns = []
        for field in shape:
            if pa.types.is_dictionary(field.type):
                column = (
                    pa.array([texts.get(field.name, "")] * count)
                    .dictionary_encode()
                    .cast(field.type)
                )
            elif field.name == "expected":  # no one else wrote to them
                column = pa.nulls(count, field.type)
            elif field.name in known:
                column = pa.array(known[field.name]).cast(field.type)
            else:
                column = pa.array(np.zeros(count, np.int64)).cast(field.type)
            columns.append(column)
        file = name.replace("/op-", "/tensor-")
        table = pa.table(columns, schema=shape)
        manifest["files"][file] = write_part(path / file, "tensor", table)
    manifest["level"] = "numerics"
    (path / schema.MANIFEST).write_text(json.dumps(manifest))


def main() -> None:
    """Prints what the comparison took."""
    events = int(sys.argv[1]) if sys.argv[1:] else EVENTS
    with tempfile.TemporaryDirectory() as folder:
        base, run = Path(folder) / "base", Path(folder) / "run"
        generate(base, events, LANES)
        shutil.copytree(base, run)
        with_values(base, planted=False)
        with_values(run, planted=True)
        command = [sys.executable, "-m", "lanescope.webapp.cli", "diff", str(base), str(run)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=False)
        took = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = json.loads(done.stdout)
    assert (answer["verdict"], done.returncode) == ("diverged", 1), answer
    memory = used.ru_maxrss * 1024 / 1e9
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"diff of two runs of {events:,} ops, {answer['compared']:,} compared:")
    print(f"  {took:.1f} s (limit {MAX_S}), {seconds:.1f} s of processor time")
    print(f"  {memory:.2f} GB (limit {MAX_GB})")


if __name__ == "__main__":
    main()
