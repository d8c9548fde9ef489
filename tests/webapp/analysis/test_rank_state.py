"""Whose a frame of a recorded stack is: the program's, a library's or the recorder's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.stack_frames import own_place, where_of
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import Builder

RECORDER = (
    "sources/locks.py",  # where hooks lived in earlier versions, whose runs are kept
    "engines/portable.py",
    "hooks/exceptions.py",
    "hooks/threads/locks.py",
    "hooks/training/modules.py",
)


@pytest.mark.parametrize("file", RECORDER)
def test_the_recorder_s_frames_are_not_the_program_s(tmp_path: Path, file: str) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    frames = [
        {"file": f"/srv/lanescope/collector/{file}", "line": 7, "function": "acquire"},
        {"file": "/home/me/train.py", "line": 12, "function": "main"},
    ]
    builder.rows("stack", 0, None, stack=[0, 1], frames=[frames, frames[:1]])
    run = open_run(builder.write())
    assert own_place(run, 0, 0) == where_of(run, 0, 0) == "train.py:12"
    assert own_place(run, 0, 1) is None


@pytest.mark.parametrize("file", ["collector/gather.py", "hooks/locks.py", "collector/my/locks.py"])
def test_a_program_s_own_files_may_have_such_names(tmp_path: Path, file: str) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    frames = [[{"file": f"/home/me/{file}", "line": 12, "function": "main"}]]
    builder.rows("stack", 0, None, stack=[0], frames=frames)
    assert own_place(open_run(builder.write()), 0, 0) == f"{Path(file).name}:12"
