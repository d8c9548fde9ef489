"""What recording adds to a lock that no other thread holds.

    python benchmarks/bench_locks.py [OPERATIONS]     (20,000 by default)

Processor time of an acquire or a release of a threading.Lock, the best of seven, without recording
and recorded with the native engine. A second thread has been there: before, nothing is recorded.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

import lanescope.collector as ls


def per_operation(operations: int) -> float:
    """ns of an acquire or a release, the loop itself taken off."""
    lock, best = threading.Lock(), float("inf")
    for _ in range(7):
        begun = time.process_time_ns()
        for _ in range(operations // 2):
            lock.acquire()
            lock.release()
        done = time.process_time_ns()
        for _ in range(operations // 2):
            pass
        best = min(best, 2 * done - begun - time.process_time_ns())
    return best / operations


def main() -> None:
    """Prints the table."""
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    bare = per_operation(operations)
    with (
        tempfile.TemporaryDirectory() as folder,
        ls.record(Path(folder) / "run", engine="native"),
    ):
        torch.ones(1).add_(1)
        other = threading.Thread(target=torch.ones, args=(1,))
        other.start()
        other.join()
        recorded = per_operation(operations)
    print(f"not recorded  {bare:8.0f} ns an operation")
    print(f"recorded      {recorded:8.0f} ns an operation, {recorded - bare:.0f} ns more")


if __name__ == "__main__":
    main()
