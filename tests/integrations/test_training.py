"""`Training` in a plain loop: what it puts on the timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.integrations import Training
from lanescope.webapp.runs.run import Run, open_run
from tests.support.processes import fork_program

PROGRAM = """
import sys
import torch
from lanescope.integrations import Training

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Training(sys.argv[1], level="timing") as training:
    for epoch in range(2):
        training.epoch(epoch)
        for _ in range(3):
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        training.log({"loss": loss.detach(), "lr": 0.1, "note": "text", "best": True})
        with training.evaluation(), torch.no_grad():
            model(torch.ones(3, 4))
        training.checkpoint(f"epoch-{epoch}.pt")
"""
MARKS = [
    "training begins",
    "epoch 0",
    "checkpoint: epoch-0.pt",
    "epoch 1",
    "checkpoint: epoch-1.pt",
    "training ends",
]


def marks(run: Run) -> list[str]:
    """Names of the marks of a run, in order of time."""
    rows = run.events("phase", columns=["start_ns", "name", "kind"]).to_pylist()
    found = [row for row in rows if row["kind"] == "mark"]
    return [row["name"] for row in sorted(found, key=lambda row: row["start_ns"])]


def values(run: Run, name: str) -> list[float]:
    """Values of a series, in order of time."""
    rows = run.events("value", columns=["time_ns", "name", "value"]).to_pylist()
    found = sorted((row["time_ns"], row["value"]) for row in rows if row["name"] == name)
    return [value for _, value in found]


def outer_evaluations(run: Run) -> int:
    """Phases of evaluation that are in no other one."""
    rows = run.events("phase", columns=["name", "kind", "depth"]).to_pylist()
    return sum(row["kind"] == "evaluation" and row["depth"] == 0 for row in rows)


def test_a_plain_loop_is_on_the_timeline(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = fork_program(program, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert marks(run) == MARKS
    assert len(values(run, "loss")) == len(values(run, "lr")) == 2
    assert values(run, "note") == values(run, "best") == []
    assert outer_evaluations(run) == 2
    assert len(run.steps(0)) == 6


def test_without_a_recording_nothing_is_done() -> None:
    with Training() as training:
        training.epoch(0)
        training.log({"loss": 1.0})
        with training.evaluation():
            training.checkpoint("a.pt")


OTHER = """
import sys
import torch
import lanescope.collector as ls
from lanescope.integrations import Training

with ls.record(sys.argv[1]), Training(sys.argv[2]):
    torch.ones(3).sin()
"""


def test_a_run_that_is_not_made_is_said(tmp_path: Path) -> None:
    program, run, other = tmp_path / "program.py", tmp_path / "run", tmp_path / "other"
    program.write_text(OTHER)
    done = fork_program(program, str(run), str(other))
    words = f"lanescope: {run} is being recorded already, so {other} is not made\n"
    assert (done.returncode, done.stderr) == (0, words)
    assert marks(open_run(run)) == ["training begins", "training ends"]
    same = fork_program(program, str(tmp_path / "same"), str(tmp_path / "same"))
    assert (same.returncode, same.stderr) == (0, "")


REPORTING = """
import os
import sys
import torch
import torch.distributed as dist
from lanescope.integrations import Training

class Writer:
    def figures(self, step, values):
        pass
    def findings(self, found):
        print("reported", flush=True)

rank = int(os.environ.pop("RANK"))  # as launchers that do not set it
dist.init_process_group("gloo", rank=rank)
training = Training(sys.argv[1], level="timing")
training.begin()
dist.all_reduce(torch.ones(3))
dist.barrier()
training.end([Writer()])
dist.destroy_process_group()
"""


@pytest.mark.torchrun
def test_rank_0_alone_reports_whatever_the_launcher(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(REPORTING)
    done = fork_program(program, str(tmp_path / "run"), ranks=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("reported") == 1


TRACKER = """
import sys
import torch
from lanescope.integrations.accelerate import LaneScopeTracker

tracker = LaneScopeTracker(sys.argv[1], level="timing")  # older accelerate calls no start()
torch.ones(3).sin()
tracker.log({"loss": 1.0})
torch.ones(3).cos()
tracker.finish()
"""


@pytest.mark.slow
def test_a_tracker_begins_with_what_it_logs_first(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TRACKER)
    done = fork_program(program, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert marks(run) == ["training begins", "training ends"]
    assert values(run, "loss") == [1.0]
