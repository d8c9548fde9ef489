"""`lanescope record` as a command: exit status, output, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lanescope.webapp.run import open_run
from tests.recording import BIN, record_program, run_program, write_program

LANESCOPE = str(BIN / "lanescope")


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("import torch", 0),
        ("import sys, torch; sys.exit(3)", 3),
        ("import torch; raise RuntimeError('boom')", 1),
        ("import os, torch; torch.ones(1).tan(); os._exit(7)", 7),
        ("import os, torch; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
        ("import os, torch; torch.ones(1).tan(); os.abort()", 128 + signal.SIGABRT),
    ],
)
def test_the_commands_status_is_passed_on(tmp_path: Path, source: str, status: int) -> None:
    recorded = record_program(tmp_path, source)
    assert recorded.status == status
    manifest = json.loads((recorded.run / "manifest.json").read_text())
    assert manifest["exit_status"] == status
    if "tan" in source:  # what completed before a death is there
        assert recorded.op_names() == ["aten::ones", "aten::tan"]


def test_the_commands_output_is_its_own(tmp_path: Path) -> None:
    recorded = record_program(tmp_path, "import torch; print('out')")
    assert recorded.stdout == "out\n"
    assert recorded.stderr == (
        f"lanescope: recorded {recorded.run}; see it with: lanescope view {recorded.run}\n"
    )


def test_a_terminated_command_gets_the_signal(tmp_path: Path) -> None:
    program = write_program(
        tmp_path,
        """
        import signal, sys, torch
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        torch.ones(1).tan()
        print("ready", flush=True)
        signal.pause()
        """,
    )
    process = subprocess.Popen(
        [LANESCOPE, "record", "-o", str(tmp_path / "run"), "--", sys.executable, str(program)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 5
    process.stdout.close()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--", "no-such-program"], "no-such-program: no such command"),
        (["--level", "all", "--", "true"], "'all' is not one of"),
        (["--steps", "5:2", "--", "true"], "steps are 5:2; A:B needs 0 <= A < B"),
        (["--steps", "x", "--", "true"], "'x' is no step window; write A:B, as in 10:20"),
        (["--min-duration", "5", "--", "true"], "'5' is no duration"),
        (["--keep-last", "lots", "--", "true"], "'lots' is no size; write a number of bytes"),
        (["--keep-last", "900TB", "--", "true"], "more than 80% of the"),
        (["--stack-depth", "0", "--", "true"], "0 is not in the range x>=1"),
        ([], "Missing argument 'COMMAND...'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = run_program([LANESCOPE, "record", "-o", str(tmp_path / "run"), *arguments])
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_place_that_is_taken_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    done = run_program([LANESCOPE, "record", "-o", str(tmp_path), "--", "true"])
    assert done.returncode == 2
    assert "is there already and is not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_program([LANESCOPE, "record", "-o", str(tmp_path / "file" / "run"), "--", "true"])
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_vanishes_does_not_harm_the_program(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import os, shutil, torch
        torch.ones(1).tan()
        shutil.rmtree(os.environ["LANESCOPE_RECORD"])
        for i in range(3000):
            torch.ones(1).tan()
            torch.ones(i + 1).tan()
        print("done")
        """,
    )
    assert (recorded.status, recorded.stdout) == (0, "done\n")
    assert "Traceback" not in recorded.stderr
    assert len(recorded.stderr.splitlines()) <= 3


def test_a_program_whose_name_is_not_utf8_is_recorded(tmp_path: Path) -> None:
    program = tmp_path / os.fsdecode(b"a\xffb.py")
    program.write_text("import torch\ntorch.ones(1).tan()\n")
    run = tmp_path / "run"
    done = run_program([LANESCOPE, "record", "-o", str(run), "--", sys.executable, str(program)])
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert open_run(run).manifest["command"][1].endswith("/a?b.py")
    assert open_run(run).counts["op"] > 1


def test_a_place_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    run = tmp_path / os.fsdecode(b"r\xffn")
    done = run_program([LANESCOPE, "record", "-o", str(run), "--", "true"])
    assert done.returncode == 2
    assert "cannot be written (its name is not UTF-8)" in done.stderr
    assert not run.exists()
