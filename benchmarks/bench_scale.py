"""Many ranks: what it takes to open, describe and analyse runs of benchmarks/generate_job.py.

    python benchmarks/bench_scale.py [RANKS]            (1,024 ranks by default)

Processor time, of processes of their own: `lanescope info` with the catalogue of the run's files
and without; the server of `lanescope view` until the page has its description, with the index and
without. Then each analysis of findings by itself, with all that it reads, on 1 to 64 ranks, per
event, and its ratio to that of four ranks: with fewer, starting is most of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.generate_job import generate_job
from benchmarks.job_plan import Faults
from lanescope.collector.format.file_names import PART_CATALOGUE

RANKS = 1024
ANALYSED = (1, 4, 16, 64)
BASE, AIM = 4, 1.3
STEPS = 48
"""Of the runs that are analysed: enough for a few milliseconds of the least of them."""

LITTLE_US = 0.1
"""An event; analyses that cost less are not compared."""

_VIEW = """
import json, sys, time
from pathlib import Path
from lanescope.webapp.runs.run import open_run
from lanescope.webapp.timeline.timeline import Timeline
run = open_run(sys.argv[1])
warnings = run.warnings
index = Timeline.open(run, cache=Path(sys.argv[2]))
from lanescope.webapp.server.server import make_app
client = make_app(run, index=index).server.test_client()
described = client.get("/api/run", headers={"Host": "localhost"}).data
print(json.dumps([time.process_time(), len(described), len(index.index.lanes)]))
"""

_CHECK = """
import json, sys, time
from lanescope.webapp.analysis.findings import run_question
from lanescope.webapp.analysis.plugin import load, questions
from lanescope.webapp.runs.run import open_run
spent = {}
for question in questions():
    load(question.find)
    took = []
    for _ in range(2):
        run = open_run(sys.argv[1])  # another one each time: no analysis reads for those behind it
        start = time.process_time()
        run_question(question, run)
        took.append(time.process_time() - start)
    spent[question.find] = min(took)
print(json.dumps([sum(run.counts.values()), spent]))
"""


def spent(*command: str | Path) -> tuple[float, str]:
    """Processor time of a command, s, and what it printed."""
    before = os.times()
    words = [str(word) for word in command]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, done.stdout


def opening(run: Path, cache: Path) -> None:
    """Prints what `info` and `view` take."""
    lanescope = Path(sys.executable).with_name("lanescope")
    files = sum(1 for _ in run.rglob("*.parquet"))
    print(f"{files:,} files, catalogue {(run / PART_CATALOGUE).stat().st_size / 1e6:.2f} MB")
    listed, _ = spent(lanescope, "info", run)
    for title in ("view, no index yet", "view, index there"):
        _, printed = spent(sys.executable, "-c", _VIEW, run, cache)
        seconds, described, lanes = json.loads(printed)
        print(f"  {title:32}{seconds:8.2f} s   {described / 1e3:.0f} KB describe {lanes:,} lanes")
    (run / PART_CATALOGUE).unlink()
    read, _ = spent(lanescope, "info", run)
    print(f"  {'info, by the catalogue':32}{listed:8.2f} s")
    print(f"  {'info, without it':32}{read:8.2f} s   x {read / listed:.1f}")


def analyses(folder: Path) -> None:
    """Prints the cost per event of the analyses by number of ranks."""
    costs: dict[int, dict[str, float]] = {}
    for ranks in ANALYSED:
        run = generate_job(folder / str(ranks), ranks, steps=STEPS, faults=Faults())
        events, of = json.loads(spent(sys.executable, "-c", _CHECK, run)[1])
        costs[ranks] = {name: seconds / events * 1e6 for name, seconds in of.items()}
    print(f"{'analyses, us per event, by ranks':42}" + "".join(f"{one:9}" for one in ANALYSED))
    most = costs[max(ANALYSED)]
    ratios = {name: cost / max(costs[BASE][name], 1e-9) for name, cost in most.items()}
    for name in sorted(most, key=lambda name: -most[name])[:12]:
        row = "".join(f"{costs[ranks][name]:9.3f}" for ranks in ANALYSED)
        print(f"  {name[-38:]:40}{row}   x {ratios[name]:.2f}")
    grown = max((name for name in most if most[name] > LITTLE_US), key=lambda name: ratios[name])
    print(f"  the one that grows most: {grown}, x {ratios[grown]:.2f} (aim: {AIM})")
    whole = {ranks: sum(of.values()) for ranks, of in costs.items()}
    row = "".join(f"{whole[ranks]:9.3f}" for ranks in ANALYSED)
    print(f"  {'all':40}{row}   x {whole[max(ANALYSED)] / whole[BASE]:.2f}")


def main() -> None:
    """Prints all tables."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else RANKS
    with tempfile.TemporaryDirectory() as folder:
        run = generate_job(Path(folder) / "run", ranks, steps=5)
        print(f"{ranks:,} ranks, 8 threads each, 5 steps")
        opening(run, Path(folder) / "cache")
        analyses(Path(folder))


if __name__ == "__main__":
    main()
