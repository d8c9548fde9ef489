"""Optimizers that are made again for each step, and wrappers that keep nothing of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import record_program

PROGRAM = """
import sys
import torch

class Averaging(torch.optim.Optimizer):
    def __init__(self, base):
        super().__init__(base.param_groups, base.defaults)
        self._base = base

    def step(self, closure=None):
        return self._base.step(closure)

def make():
    return Averaging(torch.optim.Adam(model.parameters(), 1e-3))

model = torch.nn.Linear(4, 1)
optimizer = make()
for _ in range(16):
    model(torch.ones(2, 4)).sum().backward()
    (make() if "again" in sys.argv else optimizer).step()
    model.zero_grad()
"""


@pytest.mark.parametrize("how", ["once", "again"])
def test_a_wrapper_that_is_made_once(tmp_path: Path, how: str) -> None:
    recorded = record_program(tmp_path, PROGRAM, arguments=(how,))
    assert recorded.status == 0, recorded.stderr
    found = [one.title for one in recorded.findings("dead_parameter")]
    assert any("is made for each step" in one for one in found) == (how == "again"), found
