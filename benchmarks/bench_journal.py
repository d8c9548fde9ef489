"""Does compaction keep up with a program that keeps all cores busy? The longest journal, by second.

    python benchmarks/bench_journal.py [SECONDS]      (300 by default)

The program trains a small model in as many threads as there are cores, so that operators are as
many and as short as they get. Printed are operators per second, the largest size of all journals,
what was left out for want of room, and the processor time that finishing took.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 300
LIMIT = 1_000_000_000

PROGRAM = """
import os, sys, threading, time
import torch
torch.set_num_threads(1)

def train(first, seconds):
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(24)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        model(torch.randn(4, 16)).sum().backward()
        if first:
            optimizer.step()
            optimizer.zero_grad()
        else:
            model.zero_grad()

train(True, 1e-9)  # what torch imports at the first step
seconds, cores = float(sys.argv[1]), range(os.cpu_count() or 1)
threads = [threading.Thread(target=train, args=(n == 0, seconds)) for n in cores]
[one.start() for one in threads]
[one.join() for one in threads]
"""


def journal_bytes(run: Path) -> int:
    """Disk space of all journals."""
    total = 0
    for path in (run / "journal").glob("*/*"):
        try:
            total += 512 * path.stat().st_blocks
        except FileNotFoundError:
            continue
    return total


def main() -> None:
    """Prints what became of the journal."""
    seconds = float(sys.argv[1]) if sys.argv[1:] else SECONDS
    lanescope = [sys.executable, "-m", "lanescope"]
    with tempfile.TemporaryDirectory() as folder:
        run, program = Path(folder) / "run", Path(folder) / "program.py"
        program.write_text(PROGRAM)
        command = [*lanescope, "record", "-o", str(run), "--", sys.executable, str(program)]
        recording = subprocess.Popen([*command, str(seconds)])
        began, sizes = time.monotonic(), [0]
        while recording.poll() is None:
            sizes.append(journal_bytes(run))
            time.sleep(0.5)
        took = time.monotonic() - began
        said = subprocess.run(
            [*lanescope, "info", str(run), "--json"], stdout=subprocess.PIPE, check=True
        )
        info = json.loads(said.stdout)
        manifest = json.loads((run / "manifest.json").read_text())
    thinned = sum(one["coverage"].get("thinned_steps", 0) for one in manifest["processes"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{info['events']['op'] / seconds:,.0f} operators recorded per second for {seconds:.0f} s"
    )
    print(f"  longest journal {max(sizes) / 1e6:,.0f} MB (limit {LIMIT / 1e6:,.0f} MB)")
    print(f"  {info['size_bytes'] / 1e6:,.0f} MB of Parquet, {thinned:,} steps left out")
    print(
        f"  {took - seconds:.0f} s to start and to finish, {used.ru_maxrss / 1e3:,.0f} MB at most"
    )


if __name__ == "__main__":
    main()
