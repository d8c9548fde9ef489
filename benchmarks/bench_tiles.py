"""Timeline tiles: building the index, opening a stored one, answering tiles.

    python benchmarks/bench_tiles.py [EVENTS]     (1,000,000 by default, in 64 lanes)

Processor time throughout, so that a busy machine does not blur it; opening a stored index is wall
time. The run is written through the real schema, so building includes reading Parquet.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.index import open_index
from lanescope.webapp.timeline.lod import TILE_BITS
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import write_run

RANKS, THREADS, STEPS = 8, 8, 10


def quantiles(seconds: list[float]) -> str:
    """Median and 95th percentile in milliseconds."""
    half, most = np.percentile(np.array(seconds) * 1e3, [50, 95])
    return f"p50 {half:7.3f}   p95 {most:7.3f} ms"


def timed(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds a call takes by a clock."""
    began = clock()
    call()
    return clock() - began


def main() -> None:
    """Prints the table."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        ops = max(2, events // (RANKS * THREADS * STEPS) // 2 * 2)
        shape = {"ranks": RANKS, "threads": THREADS, "steps": STEPS, "ops": ops}
        path = write_run(Path(folder) / "run", **shape, step_ns=ops * 20_000)
        cache = Path(folder) / "cache"
        run = open_run(path)
        count = sum(run.counts[table] for table in ("op", "phase", "collective"))
        reading = timed(lambda: read_columns(run), time.process_time)
        building = timed(lambda: open_index(run, cache), time.process_time)
        opening = timed(lambda: open_index(run, cache), time.perf_counter)
        timeline = Timeline(run, open_index(run, cache))
        size = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
        print(
            f"{count:,} slices in {len(timeline.index.lanes)} lanes, {run.duration_ns / 1e9:.1f} s"
        )
        print(f"build, stored     {count / building / 1e6:6.2f} M events/s of processor time")
        print(f"  of it Parquet   {reading / building:6.0%}  (its columns read and nothing done)")
        print(f"open stored       {opening * 1e3:6.1f} ms")
        print(f"stored            {size / count:6.1f} bytes an event")
        tiles(timeline)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"peak memory       {peak:6.0f} MiB, writing the run included")


def read_columns(run: object) -> None:
    """Reads what the index is made of."""
    from lanescope.webapp.runs.run import Run

    assert isinstance(run, Run)
    for thread in run.threads:
        columns = ["start_ns", "duration_ns", "name", "scope", "depth", "phase"]
        run.events("op", thread.rank, thread.thread, columns)


def tiles(timeline: Timeline) -> None:
    """Times tiles of one lane and of 64, at random places of every level."""
    random = np.random.default_rng(0)
    threads = [lane.id for lane in timeline.index.lanes if lane.thread]
    top = max(0, timeline.run.duration_ns.bit_length() - TILE_BITS)
    for wanted, repeats in ((1, 400), (64, 60)):
        lanes = threads[:wanted]
        whole: list[float] = []
        print(f"tiles of {len(lanes)} lane{'s' * (len(lanes) > 1)}")
        for level in range(0, top + 1, 3):
            spent, sizes = [], []
            for _ in range(repeats):
                at = int(random.integers(0, timeline.run.duration_ns))
                index = at >> (level + TILE_BITS)
                chosen = [threads[int(random.integers(len(threads)))]] if wanted == 1 else lanes
                began = time.thread_time()
                payload = timeline.tile(level, index, chosen)
                spent.append(time.thread_time() - began)
                sizes.append(len(payload))
            whole += spent
            print(f"  level {level:2}   {quantiles(spent)}   {np.mean(sizes) / 1024:8.1f} KiB")
        print(f"  all        {quantiles(whole)}")


if __name__ == "__main__":
    main()
