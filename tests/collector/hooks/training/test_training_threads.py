"""Hooks that compare gradients between backward and steps, while several threads train."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.collector.format.loop_names import LEFT_GRADIENTS, SCALED_STEP
from tests.support.recording import record_program

_PROGRAM = """
    import sys, threading
    import torch

    def train():  # a model of the thread's own
        body, head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        optimizers = [torch.optim.SGD(one.parameters(), lr=1e-4) for one in (body, head)]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for _ in range(60):
            for optimizer in optimizers:  # scaled, never unscaled; the other's gradients stay
                scaler.scale(head(body(torch.randn(4, 64))).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()

    threads = [threading.Thread(target=train) for _ in range(int(sys.argv[1]))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("threads", [1, 3])
def test_gradients_of_other_threads_are_not_read(tmp_path: Path, threads: int) -> None:
    recorded = record_program(tmp_path, _PROGRAM, arguments=(str(threads),))
    assert recorded.status == 0, recorded.stderr
    assert "recorder error" not in recorded.stderr
    names = {str(row["name"]) for row in recorded.rows("value")}
    seen = any(name.startswith((LEFT_GRADIENTS, SCALED_STEP)) for name in names)
    assert seen or threads > 1
