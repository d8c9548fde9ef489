"""How far behind the page of a run is that is being recorded, and how soon it says a finding.

    python benchmarks/bench_live.py [SECONDS]     (10 by default)

A program of ten steps a second is recorded, viewed in headless Chromium, and after SECONDS begins
to fail a validator. The age of a step is taken from its end in the program to the moment at which
the page counts it; that of the alert from the first failure to the words being on the page.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.support.chromium import launched

PROGRAM = """
import sys, time, torch
from pathlib import Path
import lanescope.collector as ls
folder = Path(sys.argv[1])
@ls.validator(torch.nn.ReLU)
def planted(event, inputs, outputs):
    if (folder / "fault").exists():
        with (folder / "failures").open("a") as file:
            file.write(f"{time.time()!r}\\n")
        assert False
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while not (folder / "stop").exists():
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with (folder / "steps").open("a") as file:
        file.write(f"{time.time()!r}\\n")
    time.sleep(0.1)
"""

WATCH = """
globalThis.counted = [];
globalThis.said = 0;
const look = () => {
  const steps = lanescope.debugState().steps;
  if (counted.at(-1)?.[0] !== steps) counted.push([steps, Date.now() / 1000]);
  const alert = document.querySelector(".live-alert");
  if (!said && alert && !alert.hidden) globalThis.said = Date.now() / 1000;
};
setInterval(look, 20);
"""


def main() -> None:
    """Prints the ages."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        run, environment = folder / "run", {**os.environ, "OMP_NUM_THREADS": "1"}
        command = ["lanescope", "record", "-o", str(run), "--", sys.executable]
        recorder = subprocess.Popen(
            [*command, str(folder / "program.py"), name], env=environment, stderr=subprocess.DEVNULL
        )
        try:
            _await(lambda: (folder / "steps").exists())
            time.sleep(2)
            _measure(run, folder, seconds, environment)
        finally:
            (folder / "stop").touch()
            recorder.wait()


def _measure(run: Path, folder: Path, seconds: float, environment: dict[str, str]) -> None:
    viewer = subprocess.Popen(
        ["lanescope", "view", str(run), "--no-browser", "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert viewer.stdout is not None
        address = viewer.stdout.readline().strip()
        with launched() as browser:
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            page.goto(address)
            _await(lambda: page.evaluate("Boolean(globalThis.lanescope?.debugState().live)"))
            known = "fetch('/api/live').then(a => a.json()).then(a => a.findings !== null)"
            _await(lambda: page.evaluate(known))
            time.sleep(3)
            page.evaluate(WATCH)
            time.sleep(seconds)
            (folder / "fault").touch()
            _await(lambda: page.evaluate("said") > 0)
            counted, said = page.evaluate("counted"), page.evaluate("said")
    finally:
        viewer.terminate()
        viewer.wait()
    ended = [float(line) for line in (folder / "steps").read_text().splitlines()]
    failed = float((folder / "failures").read_text().splitlines()[0])
    ages = [
        instant - ended[step]
        for (before, _), (steps, instant) in itertools.pairwise(counted)
        for step in range(before, steps)
    ]
    print(f"{len(ages)} steps in {len(counted) - 1} states of the page")
    print(
        f"age of a step when it appears: median {statistics.median(ages):.2f} s, "
        f"largest {max(ages):.2f} s"
    )
    print(f"alert: {said - failed:.2f} s after the first failure")


def _await(there: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not there():
        if time.monotonic() > until:
            raise SystemExit("the page did not come within 120 s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
