"""Importing a trace, beside reading the same file with json.load.

    python benchmarks/bench_import.py [FILE]     (else a trace of 600,000 events is made)

Processor time, so that a busy machine does not blur it, and wall time beside it; both in turn in
one run, each in a process of its own for the memory. Importing includes writing the run. `lanescope
import` reads a file of this size by a process for each core.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

EVENTS = 600_000
TURNS = 3

_READ = "import json; json.load(open(path))"
_IMPORT = """
import tempfile
from pathlib import Path
from lanescope.collector.importers.run_writer import import_files
with tempfile.TemporaryDirectory() as folder:
    import_files([Path(path)], Path(folder) / "run")
"""
_SEVERAL = """
import tempfile
from pathlib import Path
from lanescope.collector.importers.run_writer import import_files
from lanescope.collector.recorder.workers import connected
with tempfile.TemporaryDirectory() as folder, connected(None, local=True) as workers:
    import_files([Path(path)], Path(folder) / "run", workers=workers)
"""
_WAYS = {"json.load": _READ, "import": _IMPORT, "import by processes": _SEVERAL}
_MEASURE = """
import resource, sys, time, os
path = sys.argv[1]
began = sum(os.times()[:4]), time.perf_counter()
{code}
cpu, wall = sum(os.times()[:4]) - began[0], time.perf_counter() - began[1]
print(cpu, wall, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def make_trace(path: Path) -> None:
    """A trace as torch.profiler writes it: operators with shapes, launches, kernels."""
    chance = random.Random(1)
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for number in range(EVENTS // 3):
            start = 1_712_195_495_000_000 + 40 * number
            shape = [chance.choice((16, 32, 64)), 128]
            args = {
                "External id": number,
                "Input Dims": [shape],
                "Input type": ["float"],
                "Sequence number": number,
            }
            common = {"ph": "X", "pid": 1102, "tid": 1102}
            name = chance.choice(("aten::mm", "aten::add_", "aten::relu", "aten::copy_"))
            call = {"correlation": number, "External id": number, "cbid": 211}
            on_device = {
                "device": 0,
                "stream": 7,
                "correlation": number,
                "grid": [1, 1, 1],
                "block": [128, 1, 1],
                "registers per thread": 32,
            }
            for event in (
                {
                    **common,
                    "cat": "cpu_op",
                    "name": name,
                    "ts": f"{start}.125",
                    "dur": 30.5,
                    "args": args,
                },
                {
                    **common,
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "dur": 5.25,
                    "ts": f"{start + 9}.75",
                    "args": call,
                },
                {
                    **common,
                    "cat": "kernel",
                    "name": f"void kernel<{name}>",
                    "pid": 0,
                    "tid": 7,
                    "ts": f"{start + 20}.5",
                    "dur": 18.25,
                    "args": on_device,
                },
            ):
                text = json.dumps(event).replace(f'"{event["ts"]}"', str(event["ts"]))
                file.write(text + ",\n")
        file.write("{}]}\n")


def measured(code: str, path: Path) -> tuple[float, float, float]:
    """Seconds of processor time, seconds on the clock, and MB of memory at most."""
    command = [sys.executable, "-c", _MEASURE.format(code=code), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, wall, memory = done.stdout.split()[-3:]
    return float(seconds), float(wall), float(memory)


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder) / "trace.json"
        if len(sys.argv) < 2:
            make_trace(path)
        megabytes = path.stat().st_size / 1e6
        best = dict.fromkeys(_WAYS, (1e9, 1e9, 0.0))
        for _ in range(TURNS):
            for name, code in _WAYS.items():
                best[name] = min(best[name], measured(code, path))
    print(f"a trace of {megabytes:.0f} MB, best of {TURNS}")
    for name, (seconds, wall, memory) in best.items():
        print(
            f"  {name:<20} {megabytes / seconds:7.1f} MB/s per core   "
            f"{megabytes / wall:7.1f} MB/s on the clock   {memory:6.0f} MB of memory"
        )
    for name, which, of in (
        ("import", 0, "by processor time"),
        ("import by processes", 1, "on the clock"),
    ):
        ratio = best["json.load"][which] / best[name][which]
        print(f"  {name} is {ratio:.2f} times as fast as json.load {of}")


if __name__ == "__main__":
    main()
