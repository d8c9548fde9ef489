"""Is a predicted step as long as the step of the program that is really changed?

Records each program of programs/planted_causes.py on two ranks, with its cause and without,
predicts from one what the other measures, and prints medians of the steps, in ms.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import lanescope.webapp as lw
from lanescope.webapp.plugins.time.job_steps import job_steps
from lanescope.webapp.runs.run import Run

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
SKIPPED = 2
"""First steps, in which buckets are not yet built and memory is new."""

CAUSES = (
    # cause, specification, predicted from, measured
    ("delay", "rank=1:delay=0", "with", "without"),
    ("operator", "op=planted::work:x2", "without", "with"),
    ("loader", "data=0", "with", "without"),
    ("bucket", "bucket=4", "with", "without"),
)


def recorded(folder: Path, cause: str, planted: str) -> Run:
    """The run of a program on two ranks."""
    path = folder / f"{cause}-{planted}"
    torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    program = [str(HERE / "programs/planted_causes.py"), cause, planted]
    subprocess.run(
        [str(BIN / "lanescope"), "record", "-o", str(path), "--", *torchrun, *program],
        check=True,
        capture_output=True,
    )
    return lw.open_run(str(path))


def main() -> None:
    """Print a row per cause."""
    print(f"{'change':22}{'recorded':>10}{'predicted':>11}{'measured':>10}{'error':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for cause, spec, known, changed in CAUSES:
            run, other = (recorded(Path(folder), cause, one) for one in (known, changed))
            steps = job_steps(run)[SKIPPED:]
            before = np.median([one.end_ns - one.start_ns for one in steps])
            guess = np.median([lw.what_if(run, [spec], one.step)[0].step_ns for one in steps])
            after = np.median([one.end_ns - one.start_ns for one in job_steps(other)[SKIPPED:]])
            times = f"{before * 1e-6:10.1f}{guess * 1e-6:11.1f}{after * 1e-6:10.1f}"
            print(f"{spec:22}{times}{guess / after - 1:+8.1%}", flush=True)


if __name__ == "__main__":
    main()
