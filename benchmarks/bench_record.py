"""What recording costs: per operator, in memory, on disk, in compaction.

    python benchmarks/bench_record.py [small|threads|memory|disk]...

Processor time throughout, of the recorded process or of the compactor. What is compared takes turns
in one process, round after round: the quickest slices of the operators are compared. What a step of
training takes is measured by bench_step.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.compared.recorders import BARE, Method, methods, small_ops
from lanescope.collector.compaction import manifest
from lanescope.collector.format.options import (
    OPTIONS_VARIABLE,
    RUN_VARIABLE,
    SUPERVISOR_VARIABLE,
    Options,
)

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 6
SLICES = 10  # of a turn; the quickest counts, which is the one that nothing else disturbed
SMALL_OPS = 1_000  # a slice
THREADED_OPS = 5_000  # per thread
GPT = [str(ROOT / "examples/train_gpt.py"), "--workers", "0", "--text-bytes", "400000"]


@dataclass
class Cost:
    """Processor seconds of a slice of work in each round, and of ending a whole turn."""

    running: list[float] = field(default_factory=list)
    ending: list[float] = field(default_factory=list)


def turns(
    work: Callable[[], object], by_name: dict[str, Method], rounds: int = ROUNDS
) -> dict[str, Cost]:
    """What each method costs; beginning it does not count, nor what its first slice does once."""
    costs = {name: Cost() for name in by_name}
    for _ in range(rounds):
        for name, method in by_name.items():
            slices = []
            with method():
                work()
                for _ in range(SLICES):
                    began = time.process_time()
                    work()
                    slices.append(time.process_time() - began)
                began = time.process_time()
            costs[name].ending.append(time.process_time() - began)
            costs[name].running.append(min(slices))
    return costs


def added(costs: dict[str, Cost], name: str) -> float:
    """Difference of the quickest slices of all rounds, seconds.

    A fraction of a microsecond is less than what other work on the machine adds to a usual slice.
    """
    return min(costs[name].running) - min(costs[BARE].running)


def small(folder: Path) -> None:
    """Cost per small operator of every recorder."""
    costs = turns(lambda: small_ops(SMALL_OPS), methods(folder))
    unit = 1e6 / SMALL_OPS
    bare = min(costs[BARE].running)
    print(f"torch.add of 16 numbers, {bare * unit:.2f} us bare; added per operator, us:")
    print(f"  {'':24}{'running':>9}{'of bare':>9}{'ending':>9}")
    for name, cost in costs.items():
        if name != BARE:
            more, end = added(costs, name), statistics.median(cost.ending) / (SLICES + 1)
            print(f"  {name:24}{more * unit:9.2f}{more / bare:9.0%}{end * unit:9.2f}")


@torch.jit.script
def scripted(a: torch.Tensor, count: int) -> torch.Tensor:
    """Additions without the interpreter's lock, so that threads truly dispatch at once."""
    b = a
    for _ in range(count):
        b = torch.add(a, b)
    return b


def threads(folder: Path) -> None:
    """Cost per operator with several threads dispatching at once."""
    chosen = {n: m for n, m in methods(folder).items() if n in (BARE, *NATIVE)}
    print("added per operator, threads at once:")
    a = torch.ones(16)
    rows: dict[str, list[float]] = {name: [] for name in chosen}
    counts = (1, 2, 4, 8)
    for count in counts:

        def work(count: int = count) -> None:
            running = [
                threading.Thread(target=scripted, args=(a, THREADED_OPS)) for _ in range(count)
            ]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()

        costs = turns(work, chosen)
        for name in chosen:
            bare = min(costs[BARE].running)
            cost = added(costs, name) if name != BARE else bare
            rows[name].append(cost / count / THREADED_OPS)
    print(f"  {'':24}" + "".join(f"{count:>7}   " for count in counts))
    for name, row in rows.items():
        print(f"  {name:24}" + "".join(f"{cost * 1e6:7.2f} us" for cost in row))


NATIVE = ("native, timing", "native, access")


def environment(run: Path, level: str) -> dict[str, str]:
    """What records a child process into `run` and leaves its journals there."""
    options = Options(level=level, engine="native")
    manifest.create(run, options, [], world_size=1)
    return {
        RUN_VARIABLE: str(run),
        OPTIONS_VARIABLE: options.to_environment(),
        SUPERVISOR_VARIABLE: str(os.getpid()),
    }


MEASURED = """
import atexit, json, resource, runpy, sys
traced = sys.argv.pop(1) == "traced"
if traced:
    import tracemalloc
    tracemalloc.start()
try:
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    peak = tracemalloc.get_traced_memory()[1] if traced else 0
    print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, peak]))
"""


def memory(folder: Path) -> None:
    """Peak resident memory, and what Python allocated, of the training process."""
    print("memory of the example's training process, MiB:")
    for title, traced, position in (("peak resident", False, 0), ("tracemalloc, peak", True, 1)):
        peaks: dict[str, list[int]] = {BARE: [], "recorded": []}
        for round_ in range(3):
            for name, found in peaks.items():
                run = folder / f"memory-{traced}-{round_}"
                extra = environment(run, "access") if name != BARE else {}
                how = "traced" if traced else "plain"
                done = subprocess.run(
                    [sys.executable, "-c", MEASURED, how, *GPT, "--steps", "30"],
                    env={**os.environ, **extra},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found.append(json.loads(done.stdout.splitlines()[-1])[position])
        bare, recorded = (statistics.median(found) / 2**20 for found in peaks.values())
        print(f"  {title:24} {bare:7.1f}   recorded {recorded:7.1f}   x{recorded / bare:.3f}")


def disk(folder: Path) -> None:
    """Bytes per operator and seconds per million events of compaction."""
    small = "from benchmarks.compared.recorders import small_ops; small_ops(1_000_000)"
    programs = {"GPT": [*GPT, "--steps", "200"], "small operators": ["-c", small]}
    print("after compaction:")
    for level in ("timing", "access"):
        for name, program in programs.items():
            run = folder / f"disk-{level}-{len(name)}"
            path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
            subprocess.run(
                [sys.executable, *program],
                env={**os.environ, **environment(run, level), "PYTHONPATH": path},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            compactor = subprocess.Popen(
                [sys.executable, "-m", "lanescope.collector.compaction.compact", str(run)]
            )
            _, status, usage = os.wait4(compactor.pid, 0)
            assert status == 0, f"compaction failed: {status}"
            rows = {"op": 0, "access": 0}
            for path_, file in manifest.load_manifest(run)["files"].items():
                table = Path(path_).name.partition("-")[0]
                if table in rows:
                    rows[table] += file["rows"]
            size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
            spent = (usage.ru_utime + usage.ru_stime) / sum(rows.values()) * 1e6
            print(
                f"  {level:7} {name:16} {rows['op']:9,} operators, {rows['access']:9,} accesses: "
                f"{size / rows['op']:5.1f} B an operator, {spent:4.2f} s a million rows"
            )


PARTS = {"small": small, "threads": threads, "memory": memory, "disk": disk}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    chosen = parser.parse_args().parts or list(PARTS)
    warnings.simplefilter("ignore")  # DebugMode and torch.jit say things of no use here
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that are recorded
    for part in chosen:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[part](Path(folder))
        print(flush=True)


if __name__ == "__main__":
    main()
