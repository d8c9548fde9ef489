"""Hashes of gradients and parameters, which show whether data-parallel ranks agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.recording import Recorded, record_program

TRAINING = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        x = torch.full((3, 4), float(dist.get_rank() + 1))
        # In step 2 the module is called around its wrapper: gradients stay local.
        (net if step == 2 else model)(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


def hashes(recorded: Recorded, rank: int) -> dict[tuple[Any, Any], tuple[Any, Any]]:
    return {
        (g["step"], g["parameter"]): (g["grad_hash"], g["param_hash"])
        for g in recorded.rows("gradient", rank)
    }


@pytest.mark.slow
@pytest.mark.torchrun
def test_ranks_agree_until_a_gradient_is_not_synchronised(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, TRAINING, ranks=2)
    assert recorded.status == 0, recorded.stderr
    first, second = hashes(recorded, 0), hashes(recorded, 1)
    assert {step for (step, _), (grad, _) in first.items() if grad is not None} == {0, 1, 2, 4}
    same = dict.fromkeys((0, 1, 2, 4), True)
    grads = dict(same)
    for (step, name), (grad, parameter) in first.items():
        if grad is not None:
            grads[step] &= second[step, name][0] == grad
            same[step] &= second[step, name][1] == parameter
    assert grads == {0: True, 1: True, 2: False, 4: True}
    assert same == {0: True, 1: True, 2: True, 4: False}  # parted by step 2, for good


SINGLE = """
    import torch
    model = torch.nn.Linear(2, 2)
    unused = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.0)
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("level", "steps"),
    [pytest.param("timing", 0, marks=pytest.mark.slow), ("access", 0), ("numerics", 4)],
)
def test_one_process_has_hashes_at_level_numerics_only(
    tmp_path: Path, level: str, steps: int
) -> None:
    recorded = record_program(tmp_path, SINGLE, "--level", level)
    found = hashes(recorded, 0)
    weights = [h for (_, name), h in found.items() if name == "weight"]
    assert len(weights) == 4
    assert sum(grad is not None for grad, _ in weights) == steps
    if steps:
        assert len(set(weights)) == 1  # a learning rate of 0 changes nothing
        unused = [h for (_, name), h in found.items() if name.startswith("optimizer0")]
        assert all(grad is None and parameter is not None for grad, parameter in unused)
        assert len(recorded.rows("gradient")) == 12
