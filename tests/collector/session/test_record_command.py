"""`lanescope record` as a command: exit status, output, refusals."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lanescope.collector.compaction import manifest as manifests
from lanescope.collector.compaction.compact import compact
from lanescope.collector.format.options import Options
from lanescope.collector.session.launch import STARTUP_FOLDER
from lanescope.webapp.cli import main
from lanescope.webapp.runs.run import open_run
from tests.support.processes import first_line, started
from tests.support.recording import BIN, record_program, run_program, write_program

LANESCOPE = str(BIN / "lanescope")


@pytest.mark.parametrize(
    ("source", "status", "real"),
    [
        ("import torch", 0, False),
        ("import sys, torch; sys.exit(3)", 3, True),
        ("import torch; raise RuntimeError('boom')", 1, False),
        ("import os, torch; torch.ones(1).tan(); os._exit(7)", 7, False),
        ("import os, torch; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL, True),
        ("import os, torch; torch.ones(1).tan(); os.abort()", 128 + signal.SIGABRT, False),
    ],
)
def test_the_commands_status_is_passed_on(
    tmp_path: Path, source: str, status: int, real: bool
) -> None:
    recorded = record_program(tmp_path, source, real=real)
    assert recorded.status == status
    if "tan" not in source:
        assert not recorded.run.exists()
        ended = f" (it ended with exit status {status})" if status else ""
        assert recorded.stderr.endswith(
            f"nothing was recorded: the command imported torch, and ran no operator{ended}\n"
        )
        return
    manifest = json.loads((recorded.run / "manifest.json").read_text())
    assert manifest["exit_status"] == status
    # What completed before a death is there.
    assert recorded.op_names() == ["aten::ones", "aten::tan"]


@pytest.mark.slow
def test_the_commands_output_is_its_own(tmp_path: Path) -> None:
    source = "import torch; torch.ones(1); print('out')"
    recorded = record_program(tmp_path, source, real=True)
    assert (recorded.status, recorded.stdout) == (0, "out\n")
    assert recorded.stderr == (
        f"lanescope: recorded {recorded.run}; see it with: lanescope view {recorded.run}\n"
    )


@pytest.mark.parametrize(
    ("command", "status", "why"),
    [
        (["true"], 0, "true did not start Python, or not with LaneScope"),
        (["sh", "-c", "exit 3"], 3, "with LaneScope (python -S, an empty environment) (it ended "),
        ([sys.executable, "-c", "print(1)"], 0, "the command did not import torch\n"),
        ([sys.executable, "-c", "1 / 0"], 1, "torch (it ended with exit status 1)\n"),
        ([sys.executable, "-S", "-c", "1"], 0, "did not load LaneScope; do not start it with -S"),
        (["{other}/bin/python", "-c", "1"], 0, "/bin/python has no lanescope installed; install"),
    ],
)
def test_where_nothing_is_recorded_that_is_said_and_why(
    tmp_path: Path, command: list[str], status: int, why: str
) -> None:
    venv.create(tmp_path / "other")
    place = tmp_path / "run"
    words = [word.format(other=tmp_path / "other") for word in command]
    done = run_program(
        [LANESCOPE, "record", "-o", str(place), "--engine", "portable", "--", *words]
    )
    assert done.returncode == status
    said = done.stderr[done.stderr.rindex("lanescope: nothing was recorded: ") :]
    assert why in said
    assert said.count("\n") == 1
    assert not place.exists()


def test_a_python_without_a_path_is_named_by_its_version(tmp_path: Path) -> None:
    nameless = (
        f"sys.executable = ''; sys.path.insert(0, {str(STARTUP_FOLDER)!r}); import sitecustomize"
    )
    done = run_program(
        [sys.executable, "-S", "-c", f"import sys; {nameless}"],
        environment={"LANESCOPE_RECORD": str(tmp_path)},
    )
    version = f"Python {platform.python_version()}"
    assert done.stderr.startswith(f"lanescope: not recorded: {version} has no lanescope installed")


def test_a_run_in_which_nothing_was_recorded_is_explained(tmp_path: Path) -> None:
    manifests.create(tmp_path, Options(), ["true"], world_size=1)
    compact(tmp_path, exit_status=3)
    done = run_program([LANESCOPE, "info", str(tmp_path)])
    assert done.returncode == 2
    assert "nothing was recorded: the command ended with exit status 3" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
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
    command = (LANESCOPE, "record", "-o", tmp_path / "run", "--", sys.executable, program)
    with started(*command) as process:
        assert first_line(process) == "ready"
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--", "no-such-program"], "no-such-program: no such command"),
        (["--no-such", "--", "true"], "--no-such: no such option"),
        (["--level", "all", "--", "true"], "'all' is not one of"),
        (["--steps", "5:2", "--", "true"], "steps are 5:2; A:B needs 0 <= A < B"),
        (["--steps", "x", "--", "true"], "'x' is not a step window; write A:B, as in 10:20"),
        (["--min-duration", "5", "--", "true"], "'5' is not a duration"),
        (["--keep-last", "lots", "--", "true"], "'lots' is not a size; write a number of bytes"),
        (["--keep-last", "900TB", "--", "true"], "more than 80% of the"),
        (["--stack-depth", "0", "--", "true"], "0 is not in the range x>=1"),
        ([], "Missing argument 'COMMAND...'"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = CliRunner().invoke(main, ["record", "-o", str(tmp_path / "run"), *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert isinstance(done.exception, SystemExit)  # no other, which would be a traceback
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


def test_a_read_only_disk_does_not_keep_the_command_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(run: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(run))

    monkeypatch.setattr(manifests, "create", refuse)
    run = tmp_path / "run"
    done = CliRunner().invoke(main, ["record", "-o", str(run), "--", "sh", "-c", "exit 3"])
    assert done.exit_code == 3
    said = done.stderr + capfd.readouterr().err
    assert (
        said == f"lanescope: cannot write to {run} (Read-only file system); nothing is recorded\n"
    )


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
    removed = f"{recorded.run} was removed while the command ran; its recording is lost"
    assert recorded.stderr.endswith(f"lanescope: {removed}\n")


@pytest.mark.slow
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
