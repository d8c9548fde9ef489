"""Processes of a library that take turns by a flag in shared memory, and such ones of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp import open_run
from lanescope.webapp.plugins.races.race_findings import race_findings
from tests.support.recording import record_program

WORKER = """
import time


def serve(table, turns, pipe):
    while pipe.recv():
        table.add_(1)
        turns[0] += 1


def ask(table, turns, pipe, rounds):
    for done in range(rounds):
        table.mul_(0.5)
        pipe.send(True)
        while turns[0] == done:
            time.sleep(0.001)
    pipe.send(False)
"""
PROGRAM = """
import sys

import torch
import torch.multiprocessing as mp

sys.path.insert(0, {folder!r})
import worker_pool

if __name__ == "__main__":
    context = mp.get_context("spawn")
    table, turns = torch.ones(8).share_memory_(), context.RawArray("i", 1)
    mine, theirs = context.Pipe()
    worker = context.Process(target=worker_pool.serve, args=(table, turns, theirs))
    worker.start()
    worker_pool.ask(table, turns, mine, 20)
    worker.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "severity"), [("site-packages", "info"), ("helpers", "error")], ids=str
)
def test_workers_of_a_library_are_information(tmp_path: Path, place: str, severity: str) -> None:
    """What orders them is a flag that nothing recorded: a library is trusted to have one."""
    folder = tmp_path / place
    folder.mkdir()
    (folder / "worker_pool.py").write_text(WORKER)
    recorded = record_program(tmp_path, PROGRAM.format(folder=str(folder)))
    assert recorded.status == 0, recorded.stderr
    (found,) = race_findings(open_run(recorded.run))
    assert found.severity == severity
    assert found.where == "worker_pool.py:7"
