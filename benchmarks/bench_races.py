"""The race detector: accesses examined per second, beside a plain detector in the same run.

    python benchmarks/bench_races.py [ACCESSES]     (1,000,000 by default, of 4 threads)

Threads take turns under a lock for their rounds on shared tensors and work on tensors of their own
between; one unprotected write per thread is planted. Processor time of `find_races`, reading of the
Parquet files included. The plain detector is what one would write first: a loop over all accesses
in time that keeps, per tensor, the vector clocks of each thread's last read and write (DJIT+,
Pozniansky and Schuster 2003), without operators, lines, byte ranges or generations. Both have to
find the planted races. Memory is what the detector has at most beyond what was there before: beyond
2 million accesses it examines a stretch of time after another, and it must grow no more.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lanescope.webapp.plugins.races.races import find_races
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder

THREADS, SHARED, OWN = 4, 400, 400
ROUND = 1000
"""Accesses between taking the lock and letting go of it, and again between that and the next."""

LOCK = 7_000_000
PLANTED = 99  # a tensor that nothing protects


def write(path: Path, accesses: int) -> Path:
    """The run. Threads take the lock one after another, so that no two rounds overlap."""
    builder = Builder(path)
    rounds = accesses // THREADS // (2 * ROUND)
    random = np.random.default_rng(0)
    slot = 10 * ROUND  # ns: an access takes 10
    for ordinal in range(THREADS):
        thread = builder.thread(0, ordinal=ordinal)
        begins = START_NS + (np.arange(rounds) * 2 * THREADS + ordinal) * slot
        starts = (begins[:, None] + np.arange(2 * ROUND) * 10).ravel()
        inside = np.tile(np.arange(2 * ROUND) < ROUND, rounds)
        storages = (
            np.where(
                inside,
                1000 * random.integers(0, SHARED, len(starts)),
                10_000_000 * (ordinal + 1) + 1000 * random.integers(0, OWN, len(starts)),
            )
            + 1_000_000
        )
        storages[ROUND + 5] = PLANTED
        write_ = random.random(len(starts)) < 0.3
        write_[ROUND + 5] = True
        builder.rows(
            "op",
            0,
            thread,
            start_ns=starts,
            duration_ns=8,
            name="aten::add_",
            stack=ordinal,
        )
        builder.rows(
            "access",
            0,
            thread,
            start_ns=starts,
            duration_ns=8,
            storage=storages,
            bytes=64,
            run=64,
            write=write_,
        )
        builder.rows(
            "sync",
            0,
            thread,
            start_ns=np.ravel(np.stack([begins, begins + slot - 1], axis=1)),
            duration_ns=0,
            kind=["lock_acquire", "lock_release"] * rounds,
            object=LOCK,
        )
    return builder.write()


def plain(run: Run) -> set[int]:
    """Storages that race, by the obvious loop."""
    events: list[tuple[int, int, int, Any]] = []
    names = [thread.thread for thread in run.threads]
    for position, thread in enumerate(names):
        rows = run.events("access", 0, thread, ["start_ns", "storage", "write"])
        starts, storages, writes = (rows[c].to_pylist() for c in rows.column_names)
        events += [
            (t, 1, position, (s, w)) for t, s, w in zip(starts, storages, writes, strict=True)
        ]
        rows = run.events("sync", 0, thread, ["start_ns", "kind", "object"])
        for row in rows.to_pylist():
            events.append((row["start_ns"], 0, position, (row["kind"], row["object"])))
    events.sort(key=lambda event: event[:2])
    clocks = [[int(i == j) for j in range(len(names))] for i in range(len(names))]
    locks: dict[int, list[int]] = {}
    reads: dict[int, list[int]] = {}
    writes_: dict[int, list[int]] = {}
    racing = set()
    for _, kind, thread, what in events:
        own = clocks[thread]
        if kind == 0:
            name, lock = what
            if name == "lock_acquire":
                clocks[thread] = list(map(max, own, locks.get(lock, own)))
            else:
                locks[lock] = own.copy()
                own[thread] += 1
            continue
        storage, written = what
        last = writes_.setdefault(storage, [0] * len(names))
        if any(seen > known for seen, known in zip(last, own, strict=True)):
            racing.add(storage)
        if written:
            before = reads.get(storage, last)
            if any(seen > known for seen, known in zip(before, own, strict=True)):
                racing.add(storage)
            last[thread] = own[thread]
        else:
            reads.setdefault(storage, [0] * len(names))[thread] = own[thread]
    return racing


def memory_peak_reset() -> int:
    """Bytes of memory in use, from which on its peak counts."""
    Path("/proc/self/clear_refs").write_text("5")
    return in_memory("VmRSS")


def in_memory(what: str) -> int:
    """A size of /proc/self/status, bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what + ":"))


def main() -> None:
    """Prints the table."""
    accesses = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(write(Path(folder) / "run", accesses))
        count = run.counts["access"]
        before = memory_peak_reset()
        began = time.process_time()
        found = find_races(run)
        ours = time.process_time() - began
        memory = in_memory("VmHWM") - before
        began = time.process_time()
        racing = plain(run)
        theirs = time.process_time() - began
    assert racing == {PLANTED}, racing
    assert {(race.first.start_ns, race.second.start_ns) for race in found}, "nothing was found"
    print(f"{count:,} accesses of {THREADS} threads, {len(found)} pairs of places that race")
    print(
        f"find_races       {count / ours / 1e6:6.2f} M accesses/s   ({ours:.2f} s), "
        f"{memory / 1e6:.0f} MB of memory at most"
    )
    print(f"plain detector   {count / theirs / 1e6:6.2f} M accesses/s   ({theirs:.2f} s)")
    print(f"ratio            {theirs / ours:6.2f}")


if __name__ == "__main__":
    main()
