"""Trainings that take the state of a model over and over, as those with target networks."""

from pathlib import Path

from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

PROGRAM = """
import torch

model = torch.nn.Linear(4, 4)
kept = [model.state_dict(keep_vars=False) for _ in range(300)]
others = [{name: one.clone() for name, one in state.items()} for state in kept]
for state in others:
    model.load_state_dict(state)
"""


def test_hundreds_of_states_cause_no_error(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert "recorder_errors" not in open_run(recorded.run).coverage
