"""Samples of batches, arguments of models and their results."""

from __future__ import annotations

from pathlib import Path

from tests.support.recording import record_program

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
    def forward(self, x, mask=None):
        return {"logits": self.body(x), "whole": x.sum()}

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.EmbeddingBag(5, 1)
    def forward(self, tokens, other):
        return self.body(tokens) + self.body(other.to_dense().long())

torch.manual_seed(0)
model, tokens = Model(), Tokens()
optimizer = torch.optim.SGD([*model.parameters(), *tokens.parameters()], lr=0.1)
x = torch.randn(6, 4)
data = list(range(6))
sampler = DistributedSampler(data, num_replicas=1, rank=0)
loader = DataLoader(data, 6, sampler=sampler)
for step in range(12):
    sampler.set_epoch(step)
    (batch,) = loader
    zeros = torch.zeros(6, 4)
    if step == 0:
        out = model(x=x.clone(), mask=None)
    else:
        out = model({1: x, 2: zeros, 4: -zeros}.get(step, x[:, [0] * 4]))
    ids = torch.full((6, 3), 2).unsqueeze(0).expand(4, 6, 3)[0]
    loss = out["logits"].square().sum() + tokens(ids, ids.to_sparse()).sum()
    with torch.no_grad():
        model(x)
    torch.func.vmap(lambda one: nn.functional.linear(one, model.body.weight))(x)
    torch.func.grad(lambda one: (model.body(x) * one).sum())(torch.ones(()))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(float(loss))
"""


def test_batches_are_sampled(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM)
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    values = recorded.table("value").to_pandas()
    own = values[values["name"].astype(str).str.startswith("lanescope/batch/")]
    table = own.assign(name=own["name"].astype(str).str.removeprefix("lanescope/batch/"))
    numbers = table.set_index(["name", "step"])["value"]
    hashes, rows = numbers["hash/input/Model/0"], numbers["rows/input/Model/0"]
    assert list(hashes.index) == [0, 1, 2, 4, 8, 10]
    assert hashes[0] == hashes[1]  # by keyword and by position
    assert hashes[2] == hashes[4]  # zeros of either sign
    assert hashes.nunique() == 3
    assert list(rows) == [6, 6, -6, -6, 6, 6]
    assert list(numbers["rows/output/Model/0"]) == [6, 6, -6, -6, 6, 6]
    # Indices that are all the same; the sparse tensor beside them is left out.
    assert list(numbers["rows/input/Tokens/0"]) == [-6] * 6
    assert "hash/input/Tokens/1" not in set(table["name"])
    assert list(numbers["rows/loaded/0"]) == [6] * 6
    assert list(numbers["epoch/0"]) == list(range(12))


def test_no_batches_where_nothing_is_sampled(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, PROGRAM, "--level", "timing")
    assert recorded.status == 0, recorded.stderr
    assert not any("lanescope/batch/" in str(row["name"]) for row in recorded.rows("value"))
