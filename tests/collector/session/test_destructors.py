"""Destructors of the program run in its own threads, as without recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.recording import OBSERVERS, record_program

DESTRUCTORS = """
    import gc, threading, time
    import torch

    elsewhere = []

    class Figure:  # in a circle, so that only the collector of garbage frees it
        def __init__(self):
            self.itself = self

        def __del__(self):
            if threading.get_ident() != threading.main_thread().ident:
                elsewhere.append(threading.get_native_id())

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.set_threshold(30)
    for step in range(50):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        if step == 10:  # the recorder's threads have begun
            elsewhere.clear()
        for _ in range(25):
            Figure()
        time.sleep(0.1)
    print(len(elsewhere), gc.isenabled())
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", OBSERVERS)
def test_destructors_run_in_threads_of_the_program(tmp_path: Path, engine: str) -> None:
    """In any other, one of an object of Tk ends the process."""
    recorded = record_program(tmp_path, DESTRUCTORS, "--engine", engine)
    assert recorded.stdout == "0 True\n"
