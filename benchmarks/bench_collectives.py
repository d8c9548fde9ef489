"""What a recorder adds to a collective call: all_reduce of 16 numbers.

First in one process, where no rank waits for another: with the fake backend of torch, done at
once, then with gloo, which hands each call to a thread of its own. Where the system puts that
thread decides what a call takes, several times over, and a little more or less time between two
calls decides where it puts it: so once all threads are held on one core, and once gloo's on another
one than the thread that calls. Then on two gloo ranks, wherever the system puts them.

What such a call takes differs by more than a recorder adds, from one moment and from one process to
the next: so all take turns, a slice of calls each, and what counts are the differences to the bare
one of the same turn. A second bare row shows what chance changes, a row of an observer that
does nothing but let about as much time pass as the recorder takes, how much is the hand-over's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import lanescope.collector as ls
from benchmarks.compared.idle_observer import observed
from lanescope.collector.format.options import SUPERVISOR_VARIABLE

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
DELAY = "observer that lets 0.8 us pass"  # as a call begins and as it ends, and so in gloo's thread
DELAY_NS = 800  # about what the native engine takes, as the row of one core shows
OBSERVERS: dict[str, dict[str, Any]] = {
    IDLE: {},
    DELAY: {"wait_ns": DELAY_NS, "user_scopes": True},
}
ONE_CORE, TWO_CORES = "one core", "two cores"
RECORDERS: dict[str, dict[str, object]] = {
    "native": {"engine": "native"},
    "native, no watchdog": {"engine": "native", "hang_timeout_ns": 0},
    "native, timing": {"engine": "native", "level": "timing"},
    "portable": {"engine": "portable"},
    "portable, no watchdog": {"engine": "portable", "hang_timeout_ns": 0},
}
JOBS = (BARE, AGAIN, DELAY, "native", "native, no watchdog", "native, timing")
"""Between ranks. The portable engine adds a multiple, seen in the call alone."""


def call() -> None:
    """One slice of calls."""
    tensor = torch.zeros(16)
    for _ in range(CALLS):
        dist.all_reduce(tensor)


@contextmanager
def recorded(name: str, run: Path) -> Iterator[None]:
    """With the recorder or observer of this name, or with neither."""
    if name in RECORDERS:
        with ls.record(run, **RECORDERS[name]):
            yield
    elif name in OBSERVERS:
        with observed(run.parent, **OBSERVERS[name]):
            yield
    else:
        yield


def alone(folder: Path, backend: str, cores: str) -> None:
    """Prints what a recorder adds to the thread that calls and to the process, without a rank to
    wait for: all take turns in this process, in one order and then in the other."""
    os.environ[SUPERVISOR_VARIABLE] = str(os.getpid())
    torch.set_num_threads(1)
    if backend == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    call()  # from now on gloo's threads are there
    place_threads(cores)
    names = (BARE, AGAIN, *OBSERVERS, *RECORDERS)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for number in range(ROUNDS_ALONE):
        for name in names if number % 2 else reversed(names):
            with recorded(name, folder / f"{name}-{number}"):
                call()
                slices = [timed() for _ in range(SLICES)]
            found[name].append(tuple(min(one) for one in zip(*slices, strict=True)))
    quickest = {name: [min(one) for one in zip(*found[name], strict=True)] for name in names}
    thread, whole, _ = quickest[BARE]
    print(
        f"{backend}, one process, {cores}: {thread:.1f} us of the calling thread bare, "
        f"{whole:.1f} us of the process;"
    )
    print("added per call, quickest slices, and median of the differences of turns, us:")
    print(f"  {'':32}{'thread':>9}{'median':>9}{'process':>9}{'median':>9}")
    for name in names[1:]:
        median = added(found[name], found[BARE])
        figures = (quickest[name][0] - thread, median[0], quickest[name][1] - whole, median[1])
        print(f"  {name:32}{''.join(f'{one:9.1f}' for one in figures)}", flush=True)


def place_threads(cores: str) -> None:
    """Hold this thread on one core, and all others there are on the same or on another one."""
    own, *others = sorted(os.sched_getaffinity(0))
    for entry in os.listdir("/proc/self/task"):
        here = cores == ONE_CORE or int(entry) == os.getpid()
        os.sched_setaffinity(int(entry), {own} if here else set(others[:1]))


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
    with recorded(name, folder / "run"):
        call()
        for _ in sys.stdin:
            dist.barrier()
            print(*timed(), flush=True)
    dist.destroy_process_group()


class Job:
    """Two gloo ranks that do a slice of calls when they are asked to."""

    def __init__(self, name: str, folder: Path) -> None:
        folder.mkdir()
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(folder), name],
                env={**os.environ, "RANK": str(number)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]

    def slice(self) -> tuple[float, ...]:
        """What the ranks print, on average."""
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.write("calls\n")
            process.stdin.flush()
        answer = []
        for process in self.ranks:
            assert process.stdout is not None
            answer.append([float(word) for word in process.stdout.readline().split()])
        return tuple(statistics.mean(both) for both in zip(*answer, strict=True))

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
    print(
        f"two gloo ranks, {thread:.1f} us of the calling thread bare, {whole:.1f} us of the "
        f"process, {clock:.1f} us by the clock;"
    )
    print(f"added per call, median of the differences of {SETS * TURNS} turns, us:")
    print(f"  {'':32}{'thread':>9}{'process':>9}{'clock':>9}   thread, of each set")
    for name in JOBS[1:]:
        figures = "".join(f"{one:9.1f}" for one in added(found[name], found[BARE]))
        print(f"  {name:32}{figures}   {' '.join(medians[name])}", flush=True)


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
        for backend, cores in (("fake", ONE_CORE), ("gloo", ONE_CORE), ("gloo", TWO_CORES)):
            (place := Path(folder, f"{backend} {cores}")).mkdir()
            command = [sys.executable, __file__, str(place), ALONE, backend, cores]
            subprocess.run(command, check=True)
        together(Path(folder))


if __name__ == "__main__":
    if ALONE in sys.argv:
        alone(Path(sys.argv[1]), *sys.argv[3:])
    elif len(sys.argv) > 1:
        rank(sys.argv[2], Path(sys.argv[1]))
    else:
        main()
