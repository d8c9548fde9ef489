"""Parts that a program calls alone have the names that their model gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collector.hooks.test_indistinguishable import ENGINES
from tests.support.recording import record_program

AGENT = """
    import copy, torch
    from torch import nn

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(4, 8)
            self.heads = nn.ModuleDict({
                "critic": nn.Sequential(nn.Linear(8, 1)), "actor": nn.Sequential(nn.Linear(8, 2))
            })

        def value(self, x):
            return self.heads["critic"](self.trunk(x).relu())

        def logits(self, x):
            return self.heads["actor"](self.trunk(x).relu())

    agent, alone = Agent(), nn.Linear(2, 1)
    target = copy.deepcopy(agent).requires_grad_(False)
    optimizer = torch.optim.SGD([*agent.parameters(), *alone.parameters()], 0.1)
    for _ in range(3):
        x = torch.randn(3, 4)
        value = agent.value(x)
        with torch.no_grad():
            wanted = target.value(x)
        loss = (value - wanted).square().mean() + alone(agent.logits(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_are_named_in_their_model(tmp_path: Path, engine: str) -> None:
    recorded = record_program(tmp_path, AGENT, "--engine", engine)
    assert recorded.status == 0, recorded.stderr
    trained = {row["parameter"] for row in recorded.rows("parameter") if row["optimizer"] == 0}
    assert {name.rpartition(".")[0] for name in trained} == {
        "trunk",
        "heads.critic.0",
        "heads.actor.0",
        "",
    }
    assert {row["path"] for row in recorded.rows("module")} >= {"Agent#2", "Agent#2.trunk"}
