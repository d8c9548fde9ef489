"""The questions about time: their processor time and memory on runs of 1 and 10 million operators.

    python benchmarks/bench_time.py [EVENTS]...

Each question is asked in a process of its own, so its memory is the highest resident size of that
process; the first line, which only opens the run, is what all of them include.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.generate_run import generate

LANES = 64
QUESTIONS = {
    "open the run": "run.ranks",
    "breakdown, all steps": "lw.step_time(run)",
    "critical path of a step": "lw.critical_path(run)",
    "what-if of a step": "lw.what_if(run, ['phase=forward:x0.5'])",
    "slowdown by stragglers": "lw.slowdown(run)",
    "FLOPs and rates": "lw.efficiency(run)",
}

_ASK = """
import json, resource, sys, time
import lanescope.webapp as lw

start = time.process_time()
run = lw.open_run(sys.argv[1])
{question}
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([time.process_time() - start, used / 1024]))
"""


def main() -> None:
    """Prints a table per size."""
    for events in [int(word) for word in sys.argv[1:]] or [1_000_000, 10_000_000]:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            generate(run, events, LANES)
            print(f"\n{events:,} operators in {LANES} lanes")
            for title, question in QUESTIONS.items():
                asked = subprocess.run(
                    [sys.executable, "-c", _ASK.format(question=question), run],
                    capture_output=True,
                    check=True,
                    text=True,
                )
                seconds, mebibytes = json.loads(asked.stdout)
                print(f"  {title:28}{seconds:8.2f} s {mebibytes:8.0f} MiB")


if __name__ == "__main__":
    main()
