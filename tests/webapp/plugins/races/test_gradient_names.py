"""Races on gradients name the parameter, whatever the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import record_program

PROGRAM = """
import sys, threading, torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.last(self.first(x).relu())

def halve(gradient):
    gradient.mul_(0.5)

model = Model()
optim = torch.optim
kinds = {
    "plain": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: optim.AdamW(p, lr=0.1),
    "foreach": lambda p: optim.AdamW(p, lr=0.1, foreach=True),
    "fused": lambda p: optim.AdamW(p, lr=0.1, fused=True),
}
optimizer = kinds[sys.argv[1]](model.parameters())
for step in range(3):
    optimizer.zero_grad(set_to_none=sys.argv[1] == "adam")
    model(torch.randn(4, 8)).square().mean().backward()
    gradient = model.last.weight.grad
    threads = [threading.Thread(target=halve, args=(gradient,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    optimizer.step()
"""


@pytest.mark.parametrize("kind", ["plain", "momentum", "adam", "foreach", "fused"])
def test_a_race_on_a_gradient_names_its_parameter(tmp_path: Path, kind: str) -> None:
    recorded = record_program(tmp_path, PROGRAM, arguments=(kind,))
    (found,) = recorded.findings("race")
    assert found.evidence["tensors"] == ["the gradient of last.weight"]
