"""Looking into files that the program opens leaves them as they are for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lanescope.collector.format.loop_names import READ_FILE
from lanescope.webapp.runs.run import open_run
from tests.collector.hooks.test_indistinguishable import ENGINES
from tests.support.processes import output_of
from tests.support.recording import write_program

LOCKED = """
    import fcntl, os, pathlib, subprocess, sys, torch
    import lanescope.collector as ls

    held, run, engine = sys.argv[1:]
    ls.start(run, engine=engine)
    lock = open(held, "r+")
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    read = open(pathlib.Path(held), "rb")  # open: to close it would release the lock
    first = read.read(3)
    position = read.tell()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    asks = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    refused = subprocess.run([sys.executable, "-c", asks, held], capture_output=True).returncode
    print(first, position, "locked" if refused else "free")
    ls.stop()
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_files_that_are_looked_into_keep_their_locks(tmp_path: Path, engine: str) -> None:
    held, run = tmp_path / "held.bin", tmp_path / "run"
    held.write_bytes(bytes(range(200)) * 1000)
    program = write_program(tmp_path, LOCKED)
    said = output_of(sys.executable, program, held, run, engine)
    assert said.strip() == f"{bytes(range(3))!r} 3 locked"
    names = open_run(run).events("value")["name"].to_pylist()
    assert f"{READ_FILE}{held}" in names
