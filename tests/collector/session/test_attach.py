"""`lanescope attach`: recording begins and ends in a program that runs already."""

from __future__ import annotations

import signal
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from lanescope.collector.format.options import Options
from lanescope.collector.session.attach import AttachError, attach_process
from lanescope.webapp.runs.run import open_run
from tests.support.processes import first_line, run_program, started

PROGRAM = """
import pathlib, signal, sys
import torch

script = pathlib.Path(sys.argv[1])
# Where Python has no sys.remote_exec, a signal runs the same script at a safe point.
signal.signal(signal.SIGUSR1, lambda *_: exec(script.read_text(), {}))
print("ready", flush=True)
while True:
    (torch.ones(8) + 1).sum()
"""

SETTINGS = asdict(Options(level="timing", engine="portable"))


@pytest.mark.slow
def test_attach_records_until_stopped(tmp_path: Path) -> None:
    place = tmp_path / "script.py"
    run = tmp_path / "run"

    with started(sys.executable, "-c", PROGRAM, str(place)) as process:
        assert first_line(process) == "ready"

        def execute(pid: int, script: str) -> None:
            if hasattr(sys, "remote_exec"):
                sys.remote_exec(pid, script)
                return
            place.write_text(Path(script).read_text())
            process.send_signal(signal.SIGUSR1)

        with pytest.raises(AttachError, match="it is not being recorded"):
            attach_process(process.pid, run, SETTINGS, stop=True, execute=execute)
        attach_process(process.pid, run, SETTINGS, execute=execute)
        with pytest.raises(AttachError, match="is being recorded already"):
            attach_process(process.pid, run, SETTINGS, execute=execute)
        attach_process(process.pid, run, SETTINGS, stop=True, execute=execute)
        process.terminate()
        process.wait()

    names = set(open_run(run).events("op", columns=["name"])["name"].to_pylist())
    assert {"aten::add", "aten::sum"} <= names


def test_a_process_that_ended_is_named_however_python_says_it(tmp_path: Path) -> None:
    def execute(pid: int, script: str) -> None:
        raise RuntimeError("PyRuntime address lookup failed")

    with started(sys.executable, "-c", "") as process:
        process.wait()
    with pytest.raises(AttachError, match=f"there is no process {process.pid}"):
        attach_process(process.pid, tmp_path / "run", SETTINGS, execute=execute)


def test_attach_says_what_is_wrong() -> None:
    done = run_program([sys.executable, "-m", "lanescope", "attach", "4194305"])
    assert done.returncode == 2
    needed = "there is no process" if hasattr(sys, "remote_exec") else "needs Python 3.14 or newer"
    assert needed in done.stderr
    assert "Traceback" not in done.stderr
