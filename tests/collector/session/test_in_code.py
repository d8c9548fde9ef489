"""Recording from within a program: `ls.start`, `ls.record` and their settings."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.format.options import Options
from tests.support.processes import fork_program
from tests.support.recording import write_program


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"level": "numerics"}, {"level": "numerics"}),
        ({"min_duration": "1ms"}, {"min_duration_ns": 1_000_000}),
        ({"hang_timeout": 5}, {"hang_timeout_ns": 5_000_000_000}),
        ({"keep_last": "1MB"}, {"keep_last_bytes": 1_000_000}),
        ({"keep_last": None, "steps": None}, {}),
        ({"steps": "2:4"}, {"steps": (2, 4)}),
        ({"steps": [2, 4]}, {"steps": (2, 4)}),
        ({"include": "aten::view*"}, {"include": ("aten::view*",)}),
        ({"exclude": ["aten::add", "aten::mul"]}, {"exclude": ("aten::add", "aten::mul")}),
    ],
)
def test_settings_as_the_command_line_has_them(
    given: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert Options.of(**given) == Options(**fields)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="no setting 'levels'; expected level, engine, "):
        Options.of(levels="all")
    with pytest.raises(ValueError, match="level is 'all'; it must be one of timing, access"):
        Options.of(level="all")
    with pytest.raises(ValueError, match="'5' is not a duration"):
        Options.of(min_duration=5)


PROGRAM = """
    import sys
    import torch
    import lanescope.collector as ls
    with ls.record(*sys.argv[1:]):
        torch.ones(3).tan()
    with ls.record(*sys.argv[1:]):
        torch.ones(3).cos()
"""


def test_without_a_place_it_is_said_where_it_goes(tmp_path: Path) -> None:
    program = write_program(tmp_path, PROGRAM.replace("with ls.record(*sys.argv[1:])", "if True"))
    program.write_text(program.read_text().replace("if True:", "ls.start()\nif True:", 1))
    there = os.getcwd()
    os.chdir(tmp_path)
    try:
        done = fork_program(program)
    finally:
        os.chdir(there)
    assert done.returncode == 0
    assert re.fullmatch(r"lanescope: recording into runs/[0-9]{8}-[0-9]{6}\n", done.stderr)
    (run,) = (tmp_path / "runs").iterdir()
    assert list(run.glob("rank=00000/thread=*/op-00000.parquet"))


@pytest.mark.slow
def test_adding_to_a_finished_run_is_said(tmp_path: Path) -> None:
    program, run = write_program(tmp_path, PROGRAM), tmp_path / "run"
    first = fork_program(program, str(run))
    assert (first.returncode, first.stderr) == (0, "")  # twice in one process is meant
    second = fork_program(program, str(run))
    assert second.returncode == 0
    assert second.stderr == (
        f"lanescope: {run} holds a finished recording, to which this process is added; to keep "
        "them apart choose another folder, or remove that one first\n"
    )
    assert len(list(run.glob("rank=00000/thread=*/op-00000.parquet"))) > 1
    again = fork_program(program, str(run), environment={"TORCHELASTIC_RESTART_COUNT": "1"})
    assert (again.returncode, again.stderr) == (0, "")
