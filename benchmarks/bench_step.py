"""What a recorder adds to a training step of the example's GPT: median of interleaved pairs.

Each recorder has a process of its own, and so has the step without one, twice. They take turns step
by step, so that a machine that slows down for a while slows all of them; a recorder's step is
compared with the bare step of the same turn. The placement of memory makes processes differ too:
several sets of them are started, and every set's median is printed beside that of all. Those that
take a multiple of the step are few steps in a set of their own. What a recorder adds goes with
operators and parameters, not with what an operator computes: so larger batches follow.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from benchmarks.compared.idle_observer import observed
from benchmarks.compared.recorders import BARE, Method, methods, readers
from benchmarks.programs.gpt_step import BATCH, training_step

SETS = 5
STEPS = 30  # of each process that count
FIRST = 4  # steps before: work that is done once, and norms at doubling steps
AGAIN = "bare again"  # what differs between the two bare ones is chance
IDLE = "idle observer"  # torch's own share of what an engine of observers costs
NAMES = (
    *(
        BARE,
        AGAIN,
        IDLE,
        "native, timing",
        "native, access",
        "native, numerics",
        "portable, access",
    ),
    *("torch.profiler", "torch DebugMode"),
)
SLOW = (BARE, "portable, numerics", "torch DebugMode, hashes", "naive statistics")
SLOW_STEPS = 5
BATCHES = {16: 20, 64: 10}  # -> steps
AT_BATCHES = (BARE, AGAIN, IDLE, "native, timing", "native, access", "torch.profiler")
AT_BATCHES_SETS = 2


def stepper() -> None:
    """Child: takes a step of the GPT for each line on stdin, prints its processor seconds."""
    torch.set_num_threads(1)
    name, folder, batch = sys.argv[2:]
    step = training_step(int(batch))
    warnings.simplefilter("ignore")  # DebugMode says things of no use here
    known: dict[str, Method] = {AGAIN: nullcontext, IDLE: lambda: observed(Path(folder))}
    known |= {**readers(Path(folder)), **methods(Path(folder))}
    with known[name]():
        for _ in sys.stdin:
            began = time.process_time()
            step()
            print(time.process_time() - began, flush=True)


def taken(process: subprocess.Popen[str]) -> float:
    """Processor seconds of one more step of a child."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("step\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def one_set(folder: Path, names: tuple[str, ...], steps: int, batch: int) -> dict[str, list[float]]:
    """Processor seconds of each method's steps; those of the same index were taken in one turn."""
    command = [sys.executable, __file__, "child"]
    processes = {
        name: subprocess.Popen(
            [*command, name, str(folder), str(batch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(FIRST + steps):
        for name in random.sample(names, len(names)):
            seconds = taken(processes[name])
            if turn >= FIRST:
                found[name].append(seconds)
    for process in processes.values():
        process.communicate()
    return found


def compare(names: tuple[str, ...], sets: int, steps: int, batch: int = BATCH) -> None:
    """Prints the ratios of all to the first."""
    found_in = []
    for _ in range(sets):
        with tempfile.TemporaryDirectory() as folder:
            found_in.append(one_set(Path(folder), names, steps, batch))
    bare = statistics.median(second for found in found_in for second in found[BARE])
    of = f"step of the 4-layer GPT, batch {batch}"
    print(f"{of}, {bare * 1e3:.0f} ms bare; sets of {steps} steps:")
    for name in names[1:]:
        ratios = [
            [one / other for one, other in zip(found[name], found[BARE], strict=True)]
            for found in found_in
        ]
        median = statistics.median(ratio for one in ratios for ratio in one)
        each = "  ".join(f"{statistics.median(one):.3f}" for one in ratios)
        print(f"  {name:24} x {median:.3f}   sets: {each}", flush=True)


def main() -> None:
    """Prints all tables."""
    compare(NAMES, SETS, STEPS)
    for batch, steps in BATCHES.items():
        compare(AT_BATCHES, AT_BATCHES_SETS, steps, batch)
    compare(SLOW, 1, SLOW_STEPS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        stepper()
    else:
        main()
