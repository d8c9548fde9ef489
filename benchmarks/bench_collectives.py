"""What a recorder adds to a collective call: all_reduce of 16 numbers, alone and on two gloo ranks.

Alone, torch's fake backend is done at once: no other rank and no other thread, only the call. Then
both ranks take the same turns, bare and with each recorder, round after round. Counted is
processor time, because a call also waits for the other rank: of the thread that calls, and of the
process with gloo's threads, which also holds what the scheduler does with two ranks that hand over
to each other all the time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import lanescope.collector as ls
from lanescope.collector.options import SUPERVISOR_VARIABLE

CALLS = 100
SLICES = 2
ROUNDS = 4
ROUNDS_ALONE = 16
ALONE = "alone"
BARE = "bare"
RECORDERS: dict[str, dict[str, object]] = {
    "native": {"engine": "native"},
    "native, no watchdog": {"engine": "native", "hang_timeout_ns": 0},
    "native, timing": {"engine": "native", "level": "timing"},
    "portable": {"engine": "portable"},
    "portable, no watchdog": {"engine": "portable", "hang_timeout_ns": 0},
}


def call() -> None:
    """One slice of calls."""
    tensor = torch.zeros(16)
    for _ in range(CALLS):
        dist.all_reduce(tensor)


def alone(folder: Path) -> None:
    """Prints what a recorder adds to the thread that calls, without anything to wait for."""
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    costs: dict[str, list[float]] = {name: [] for name in (BARE, *RECORDERS)}
    for number in range(ROUNDS_ALONE):
        for name in costs:
            run = folder / f"{name}-{number}"
            with nullcontext() if name == BARE else ls.record(run, **RECORDERS[name]):
                call()
                slices = []
                for _ in range(2 * SLICES):
                    began = time.thread_time()
                    call()
                    slices.append(time.thread_time() - began)
            costs[name].append(min(slices) * 1e6 / CALLS)
    bare = costs.pop(BARE)
    print(f"alone, {min(bare):.1f} us bare; added to the thread, quickest and median, us:")
    for name, found in costs.items():
        middle = statistics.median(a - b for a, b in zip(found, bare, strict=True))
        print(f"  {name:24}{min(found) - min(bare):9.1f}{middle:9.1f}", flush=True)


def rank(folder: Path) -> None:
    """One of the two ranks; rank 0 prints microseconds of processor time per call."""
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=own(), world_size=2)
    call()
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in (BARE, *RECORDERS)}
    for number in range(ROUNDS):
        for name in costs:
            run = folder / f"{name}-{number}"
            with nullcontext() if name == BARE else ls.record(run, **RECORDERS[name]):
                call()
                slices = []
                for _ in range(SLICES):
                    dist.barrier()
                    began, begun = time.thread_time(), time.process_time()
                    call()
                    slices.append((time.thread_time() - began, time.process_time() - begun))
            thread, whole = (min(times) * 1e6 / CALLS for times in zip(*slices, strict=True))
            costs[name].append((thread, whole))
    dist.barrier()
    if own() == 0:
        show(costs)
    dist.destroy_process_group()


def show(costs: dict[str, list[tuple[float, float]]]) -> None:
    """Print the quickest slice bare, and the differences of the quickest and of the medians."""
    bare = costs.pop(BARE)
    thread, whole = (min(times) for times in zip(*bare, strict=True))
    print(f"all_reduce of 16 numbers, bare {thread:.1f} us in the thread, {whole:.1f} us in all;")
    print("added per call, us of processor time:")
    print(f"  {'':24}{'thread':>9}{'median':>9}{'all':>9}{'median':>9}")
    for name, found in costs.items():
        figures = []
        for mine, theirs in zip(zip(*found, strict=True), zip(*bare, strict=True), strict=True):
            pairs = [a - b for a, b in zip(mine, theirs, strict=True)]
            figures += [min(mine) - min(theirs), statistics.median(pairs)]
        print(f"  {name:24}" + "".join(f"{figure:9.1f}" for figure in figures))


def own() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])


def main() -> int:
    """Start both ranks; 1 if one of them failed."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, folder, ALONE], check=True)
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, folder], env={**os.environ, "RANK": str(number)}
            )
            for number in range(2)
        ]
        statuses = [process.wait() for process in ranks]
        return int(any(statuses))


if __name__ == "__main__":
    if ALONE in sys.argv:
        alone(Path(sys.argv[1]))
    elif len(sys.argv) > 1:
        rank(Path(sys.argv[1]))
    else:
        sys.exit(main())
