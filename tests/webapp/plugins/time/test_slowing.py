"""Steps that take longer and longer, and steps that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import record_program

PROGRAM = """
import time
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    time.sleep({sleep})
"""


FIRST = "import time\nimport torch\n\ntorch.set_num_threads(1)"
ONE_OF_SEVERAL = """
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    time.sleep({sleep})
    optimizer.step()
"""


OF_TWO_THREADS = """
import threading
import time
import torch

torch.set_num_threads(1)


def serve(turns, number):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(48):
        turns[number].acquire()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.004 * step)
        turns[1 - number].release()


turns = threading.Semaphore(1), threading.Semaphore(0)
threads = [threading.Thread(target=serve, args=(turns, number)) for number in range(2)]
[one.start() for one in threads]
[one.join() for one in threads]
"""


def test_steps_of_a_server_have_the_length_of_what_asks(tmp_path: Path) -> None:
    assert record_program(tmp_path, OF_TWO_THREADS).findings("growth") == []


def test_the_next_training_may_have_longer_steps(tmp_path: Path) -> None:
    trainings = [ONE_OF_SEVERAL.format(sleep=sleep) for sleep in (0, 0.005, 0.01, 0.03)]
    assert record_program(tmp_path, "\n".join([FIRST, *trainings])).findings("growth") == []


@pytest.mark.parametrize(
    ("steps", "sleep", "grows"),
    [
        (48, "0.004 * step", True),
        (30, "0.001 * step", False),  # too few
        (48, "0.02", False),
        (48, "0.02 * (step % 2)", False),
        pytest.param(48, "0.001 * (48 - step)", False, marks=pytest.mark.slow),
    ],
)
def test_steps_that_take_longer(tmp_path: Path, steps: int, sleep: str, grows: bool) -> None:
    program = PROGRAM.format(steps=steps, sleep=sleep)
    found = record_program(tmp_path, program).findings("growth")
    assert [(one.severity, one.evidence["cause"]) for one in found] == [("info", "slowing")] * grows
    for one in found:
        assert "What grows is at program.py:12, from" in one.title
        assert one.where == "program.py:12"
