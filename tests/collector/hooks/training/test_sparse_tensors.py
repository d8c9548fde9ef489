"""Sparse and nested tensors that operators of a training keep for backward."""

from pathlib import Path

from lanescope.webapp.runs.run import open_run
from tests.support.recording import record_program

PROGRAM = """
import torch

features = torch.randn(12, 12).to_sparse()
texts = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
weight = torch.nn.Parameter(torch.randn(12, 4))
layer = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD([weight, *layer.parameters()], lr=0.01)
for _ in range(3):
    loss = torch.mm(features, weight).square().sum() + layer(texts).to_padded_tensor(0.0).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_sparse_and_nested_tensors_cause_no_error(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    assert "recorder_errors" not in open_run(recorded.run).coverage
