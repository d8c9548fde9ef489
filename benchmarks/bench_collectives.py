"""What a recorder adds to a collective call: all_reduce of 16 numbers.

First in one process, where nobody waits for another rank: with the fake backend of torch, done at
once, then with gloo, which hands each call to a thread of its own. Then on two gloo ranks. What
such a call takes differs by more than a recorder adds, from one moment and from one process to the
next: so all take turns, a slice of calls each, and what counts are the differences to the bare one
of the same turn. A second bare row tells how far chance takes them.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import lanescope.collector as ls
from benchmarks.idle_observer import observed
from lanescope.collector.options import SUPERVISOR_VARIABLE

CALLS = 100
SLICES = 4
ROUNDS_ALONE = 8
SETS = 3
TURNS = 25
FIRST = 4  # turns before those that count
ALONE = "alone"
BARE = "bare"
AGAIN = "bare again"  # what it differs in from the first is chance
IDLE = "idle observer"  # torch's own share of what an engine of observers costs
RECORDERS: dict[str, dict[str, object]] = {
    "native": {"engine": "native"},
    "native, no watchdog": {"engine": "native", "hang_timeout_ns": 0},
    "native, timing": {"engine": "native", "level": "timing"},
    "portable": {"engine": "portable"},
    "portable, no watchdog": {"engine": "portable", "hang_timeout_ns": 0},
}
JOBS = (BARE, AGAIN, "native", "native, no watchdog", "native, timing")
"""Between ranks. The portable engine adds a multiple: the call alone tells of it."""


def call() -> None:
    """One slice of calls."""
    tensor = torch.zeros(16)
    for _ in range(CALLS):
        dist.all_reduce(tensor)


def alone(folder: Path, backend: str) -> None:
    """Prints what a recorder adds to the thread that calls and to the process, without a rank to
    wait for: all take turns in this process, in one order and then in the other."""
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    torch.set_num_threads(1)
    if backend == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    names = (BARE, AGAIN, IDLE, *RECORDERS)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for number in range(ROUNDS_ALONE):
        for name in names if number % 2 else reversed(names):
            run = folder / f"{name}-{number}"
            idle = observed(folder) if name == IDLE else nullcontext()
            with ls.record(run, **RECORDERS[name]) if name in RECORDERS else idle:
                call()
                slices = [timed() for _ in range(SLICES)]
            found[name].append(tuple(min(one) for one in zip(*slices, strict=True)))
    quickest = {name: [min(one) for one in zip(*found[name], strict=True)] for name in names}
    thread, whole, _ = quickest[BARE]
    print(f"{backend}, one process: {thread:.1f} us of the calling thread bare, {whole:.1f} us of "
          "the process;")  # fmt: skip
    print("added per call, quickest slices, and median of the differences of turns, us:")
    print(f"  {'':24}{'thread':>9}{'median':>9}{'process':>9}{'median':>9}")
    for name in names[1:]:
        median = added(found[name], found[BARE])
        figures = (quickest[name][0] - thread, median[0], quickest[name][1] - whole, median[1])
        print(f"  {name:24}{''.join(f'{one:9.1f}' for one in figures)}", flush=True)


def timed() -> tuple[float, ...]:
    """A slice of calls: microseconds per call of the thread's and the process's processor time,
    and by the clock."""
    clocks = (time.thread_time, time.process_time, time.perf_counter)
    began = [clock() for clock in clocks]
    call()
    ended = [clock() for clock in clocks]
    return tuple((b - a) * 1e6 / CALLS for a, b in zip(began, ended, strict=True))


def rank(name: str, folder: Path) -> None:
    """One of the two ranks of a job: a slice of calls for each line on stdin; prints microseconds
    per call, of the calling thread's processor time, the process's, and by the clock."""
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=own(), world_size=2)
    settings = RECORDERS.get(name)
    with nullcontext() if settings is None else ls.record(folder / "run", **settings):
        call()
        for _ in sys.stdin:
            dist.barrier()
            print(*timed(), flush=True)


class Job:
    """Two gloo ranks that do a slice of calls when they are asked to."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(folder), name],
                env={**os.environ, "RANK": str(number)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(2)
        ]  # fmt: skip

    def slice(self) -> tuple[float, ...]:
        """What the ranks print, on average."""
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.write("calls\n")
            process.stdin.flush()
        told = []
        for process in self.ranks:
            assert process.stdout is not None
            told.append([float(word) for word in process.stdout.readline().split()])
        return tuple(statistics.mean(both) for both in zip(*told, strict=True))

    def end(self) -> None:
        """Let both end. Raises CalledProcessError where one failed."""
        for process in self.ranks:
            process.communicate()
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)


def together(folder: Path) -> None:
    """Prints what recorders add on two gloo ranks: all jobs take turns, slice by slice, in one
    order and then in the other."""
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in JOBS}
    medians: dict[str, list[str]] = {name: [] for name in JOBS}
    for number in range(SETS):
        jobs = {name: Job(name, folder / f"{number}-{name}") for name in JOBS}
        of_set: dict[str, list[tuple[float, ...]]] = {name: [] for name in JOBS}
        for turn in range(-FIRST, TURNS):
            for name in JOBS if turn % 2 else reversed(JOBS):
                taken = jobs[name].slice()
                if turn >= 0:
                    of_set[name].append(taken)
        for job in jobs.values():
            job.end()
        for name in JOBS:
            found[name] += of_set[name]
            medians[name].append(f"{added(of_set[name], of_set[BARE])[0]:.1f}")
    thread, whole, clock = (statistics.median(times) for times in zip(*found[BARE], strict=True))
    print(f"two gloo ranks, {thread:.1f} us of the calling thread bare, {whole:.1f} us of the "
          f"process, {clock:.1f} us by the clock;")  # fmt: skip
    print(f"added per call, median of the differences of {SETS * TURNS} turns, us:")
    print(f"  {'':24}{'thread':>9}{'process':>9}{'clock':>9}   thread, of each set")
    for name in JOBS[1:]:
        figures = "".join(f"{one:9.1f}" for one in added(found[name], found[BARE]))
        print(f"  {name:24}{figures}   {' '.join(medians[name])}", flush=True)


def added(mine: list[tuple[float, ...]], bare: list[tuple[float, ...]]) -> list[float]:
    """Median differences of the turns, for each kind of time."""
    pairs = [
        [a - b for a, b in zip(one, other, strict=True)]
        for one, other in zip(mine, bare, strict=True)
    ]
    return [statistics.median(differences) for differences in zip(*pairs, strict=True)]


def own() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])


def main() -> None:
    """Measure the call alone, then between ranks."""
    with tempfile.TemporaryDirectory() as folder:
        for backend in ("fake", "gloo"):
            (place := Path(folder, backend)).mkdir()
            subprocess.run([sys.executable, __file__, str(place), ALONE, backend], check=True)
        together(Path(folder))


if __name__ == "__main__":
    if ALONE in sys.argv:
        alone(Path(sys.argv[1]), sys.argv[3])
    elif len(sys.argv) > 1:
        rank(sys.argv[2], Path(sys.argv[1]))
    else:
        main()
