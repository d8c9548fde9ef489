"""Modules and gradients that are made within inference_mode have no versions to compare."""

from __future__ import annotations

from pathlib import Path

from lanescope.webapp import open_run
from tests.support.recording import record_program

PROGRAM = """
import torch

with torch.inference_mode():
    teacher = torch.nn.Linear(4, 1)
    state = teacher.state_dict()
    teacher.load_state_dict(state)
    gradient = torch.ones(1, 4)
models = [torch.nn.Linear(4, 1, bias=False) for _ in range(2)]
optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
for _ in range(4):
    models[0](torch.ones(2, 4)).sum().backward()
    models[1].weight.grad = gradient
    for one in optimizers:
        one.step()
    optimizers[0].zero_grad()
models[0].load_state_dict({"weight": state["weight"]})
"""


def test_modules_and_gradients_of_inference_mode(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert open_run(recorded.run).coverage.get("recorder_errors") is None
