"""Tests that an adapter without a gradient names the line where it ends, or the step since when."""

from __future__ import annotations

from pathlib import Path

from tests.support.recording import record_program

PROGRAM = """
import torch
from torch.utils.checkpoint import checkpoint

class Adapted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.base = torch.nn.Linear(8, 8).requires_grad_(False)
        self.lora_A = torch.nn.Linear(8, 2, bias=False)
        self.lora_B = torch.nn.Linear(2, 8, bias=False)
        torch.nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Adapted(), Adapted()])
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(x)

model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


def test_an_adapter_names_the_line_where_its_gradient_ends(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    (finding,) = recorded.findings("lora_inactive")
    line = PROGRAM[: PROGRAM.index("x = checkpoint")].count("\n") + 1
    assert (finding.where or "").endswith(f":{line}")
    assert "use_reentrant=False" in finding.title


def test_an_adapter_that_is_frozen_later_names_the_step(tmp_path: Path) -> None:
    """Parameters are not sampled at step 6."""
    late = PROGRAM.replace("for _ in range(12):", "for step in range(12):")
    late = late.replace("x = checkpoint(block, x, use_reentrant=True)", "x = block(x)")
    late += """    if step == 5:
        for block in model.blocks:
            block.lora_B.weight.requires_grad_(False)
"""
    recorded = record_program(tmp_path, late)
    assert recorded.status == 0, recorded.stderr
    (finding,) = recorded.findings("lora_inactive")
    assert (finding.evidence["cause"], finding.step) == ("not_trainable", 6)
