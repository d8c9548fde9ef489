"""`lanescope check` of 64 ranks with its per-rank work on one and on two workers of a Dask cluster.

    python benchmarks/bench_cluster.py [OPS]      (48,000 operators a thread and step by default)

Both are measured in turn on one run. Beside wall time, which means something on an idle machine
only, stands what processor time says: with the work of the ranks shared evenly, two workers take
(all) / (what one process does alone + the busiest worker) times as little.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lanescope.collector.compaction.catalogue import write_catalogue
from tests.support.dask_cluster import SCHEDULER, WORKER
from tests.support.processes import first_line, started
from tests.support.synthetic import write_run

RANKS, THREADS, STEPS = 64, 2, 8
OPS = 48_000
AIM = 1.7


def _started(ends: ExitStack, program: str, *arguments: str) -> str:
    """Starts a part of the cluster until `ends` does; its address."""
    command = (sys.executable, "-c", program, *arguments)
    return first_line(ends.enter_context(started(*command, stderr=subprocess.DEVNULL)))


def checked(run: Path, workers: int) -> tuple[str, float, float, list[float]]:
    """The answer of a check; seconds on the clock, of its process, and of each worker."""
    with ExitStack() as ends:
        address = _started(ends, SCHEDULER)
        for _ in range(workers):
            _started(ends, WORKER, address)
        with Client(address, set_as_default=False) as client:
            before = client.run(time.process_time)
            used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            command = [sys.executable, "-m", "lanescope", "check", str(run), "--json"]
            done = subprocess.run(
                [*command, "--cluster", address], stdout=subprocess.PIPE, text=True, check=False
            )
            wall = time.perf_counter() - began
            now = resource.getrusage(resource.RUSAGE_CHILDREN)
            after = client.run(time.process_time)
    own = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return done.stdout, wall, own, [after[name] - before[name] for name in after]


def main() -> None:
    """Prints what one and two workers took."""
    ops = int(sys.argv[1]) if sys.argv[1:] else OPS
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(
            Path(folder) / "run",
            ranks=RANKS,
            threads=THREADS,
            steps=STEPS,
            ops=ops,
            step_ns=max(1_000_000, 1_000 * ops),
        )
        write_catalogue(run, json.loads((run / "manifest.json").read_text()))  # as recorded runs
        first, *one = checked(run, 1)
        second, *two = checked(run, 2)
    assert first == second, "the answers differ"
    wall_1, own_1, shares_1 = one
    wall_2, own_2, shares_2 = two
    count = RANKS * THREADS * STEPS * ops
    print(f"check of {RANKS} ranks with {count:,} operators, the same answer from both:")
    for number, (wall, own, shares) in enumerate(((wall_1, own_1, shares_1), two), 1):
        each = ", ".join(f"{share:.1f}" for share in sorted(shares))
        print(f"  {number} worker(s): {wall:.1f} s; processor {own:.1f} s here, {each} s there")
    ratio = (own_1 + sum(shares_1)) / (own_2 + max(shares_2))
    print(f"  two in place of one: {wall_1 / wall_2:.2f} times by the clock")
    print(f"  {ratio:.2f} times by processor time (aim {AIM})")


if __name__ == "__main__":
    main()
