"""Training that waits for its data, and training that does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.recording import record_program

PROGRAM = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep({sleep})
        return torch.randn(8)

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Samples(), 4, num_workers={workers}):
    time.sleep({compute})
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("sleep", "compute", "workers", "advice"),
    [
        (0.012, 0, 0, "No worker loads it"),
        pytest.param(0.02, 0, 2, "Its 2 workers cannot keep up", marks=pytest.mark.slow),
        (0, 0.06, 0, ""),  # a batch takes far less than 5 ms
        (0.003, 0.08, 0, ""),  # a sixth of the step at most
        pytest.param(0.0005, 0.08, 2, "", marks=pytest.mark.slow),  # workers load meanwhile
    ],
)
def test_steps_that_wait_for_data(
    tmp_path: Path, sleep: float, compute: float, workers: int, advice: str
) -> None:
    program = PROGRAM.format(sleep=sleep, compute=compute, workers=workers)
    found = record_program(tmp_path, program).findings("data_stall")
    assert [advice in one.title for one in found] == [True] * bool(advice)
    for one in found:
        assert "persistent_workers" not in one.title
        assert (one.severity, one.evidence["workers"]) == ("info", workers)
        assert str(one.where).endswith((":11", ":16"))  # the sample, or the loop over the loader
        assert 0.3 <= one.evidence["share"] <= 1


EPOCHS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(12, 8)), 4, num_workers=2)
for epoch in range(6):
    for x, in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""


def test_epochs_that_start_workers_again(tmp_path: Path) -> None:
    (found,) = record_program(tmp_path, EPOCHS).findings("data_stall")
    starts = re.search(r"is in the (\d+) steps in which workers start", found.title)
    assert starts is not None, found.title
    assert 5 <= int(starts[1]) <= 10  # the second worker of an epoch may start a step later
    assert "persistent_workers=True" in found.title
