"""Input that is not a run, or a damaged one: one clear sentence and status 2, never a traceback."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lanescope.webapp.cli import main
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import open_run
from tests.support.processes import run_program
from tests.support.spoiled import change, refusal
from tests.support.synthetic import START_NS, Builder, write_run


def test_missing_directory(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    assert refusal(path) == (
        f"{path}: no such directory; expected a run directory, as written by `lanescope record -o`"
    )


def test_empty_directory(tmp_path: Path) -> None:
    assert "the directory is empty; expected a run directory" in refusal(tmp_path)


def test_a_directory_of_other_things(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "holds no manifest.json, so it is not a run; expected" in refusal(tmp_path)


def test_a_folder_of_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "threads-1" / "run-00", steps=1)
    for folder in (tmp_path, run.parent):
        with pytest.raises(RunError, match=f"expected one of them, such as {re.escape(str(run))}"):
            open_run(folder)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("{}")
    assert "is a file, and not a bundle; expected a bundle" in refusal(path)


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "expected a run directory" in refusal(tmp_path / "file" / "run")


def test_an_impossible_path() -> None:
    assert "no such directory" in refusal("a\0b")


def test_a_path_too_long() -> None:
    assert "cannot be read (File name too long)" in refusal("a" * 5000)


def test_a_run_without_events(tmp_path: Path) -> None:
    path = Builder(tmp_path / "run").write()
    assert "the run holds no events, expected at least one" in refusal(path)
    change(path, lambda manifest: manifest.update(complete=False, exit_status=None))
    assert "the run holds no events yet" in refusal(path)


def test_a_run_whose_only_journal_is_damaged_says_so(tmp_path: Path) -> None:
    path = Builder(tmp_path / "run", complete=False).write()
    (path / "journal" / "1-2").mkdir(parents=True)
    (path / "journal" / "1-2" / "process.json").write_text("{")
    answer = refusal(path)
    assert "no event can be read; the journal of process 1-2 cannot be read" in answer
    assert answer.endswith("; restore it from a copy or record again")


def test_a_run_whose_tables_have_no_rows(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.rows("op", 0, "1000-0", start_ns=[], duration_ns=[])
    builder._threads.clear()
    assert "the run holds no events" in refusal(builder.write())


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["info", str(tmp_path / "a\x1b[31m\nb")])
    assert result.exit_code == 2
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1
    builder = Builder(tmp_path / "run", notes=["\x1b]0;owned\x07"], command=["[red]x", "\x1b[2J"])
    builder.op(START_NS, 1)
    shown = CliRunner().invoke(main, ["info", str(builder.write())])
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert "[red]x" in shown.stdout


def test_the_command_itself_refuses_with_status_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lanescope.webapp.cli", "info", str(tmp_path)]
    done = run_program(command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"lanescope: {tmp_path}: the directory is empty; expected a run directory, as written by "
        "`lanescope record -o`\n"
    )


def test_wrong_usage_is_status_2() -> None:
    for arguments in (["info"], ["nothing"], ["diff", "a"], ["diff", "a", "b", "--mode", "x"]):
        assert CliRunner().invoke(main, arguments).exit_code == 2
