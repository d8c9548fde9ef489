"""A run with a missing or damaged rank works in every command, and says which one."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lanescope.webapp.bundles.selection import Contents
from lanescope.webapp.cli import main
from lanescope.webapp.runs.run import open_run
from tests.support.synthetic import write_run

OPS = "rank=00000/thread=1000-0/op-00000.parquet"


def gone(run: Path) -> None:
    shutil.rmtree(run / "rank=00000")


def truncated(run: Path) -> None:
    data = (run / OPS).read_bytes()
    (run / OPS).write_bytes(data[: len(data) // 2])


def elsewhere(run: Path) -> None:
    (run / OPS).unlink()
    (run / OPS).symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    "damage", [gone, *(pytest.param(one, marks=pytest.mark.slow) for one in (truncated, elsewhere))]
)
def test_every_command_goes_on_with_the_ranks_that_are_there(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    run = write_run(tmp_path / "run", ranks=2, threads=1, steps=2, ops=4)
    damage(run)
    to = tmp_path / "to"
    for status, *command in (
        (0, "info", run),
        (0, "check", run, "--fail-on", "never"),
        (0, "pack", run, "-o", tmp_path / "run.lanes"),
        (0, "verify", tmp_path / "run.lanes"),
        (1, "verify", run),
        (0, "diff", run, run),
        *(
            (0, "export", run, "--to", kind, "-o", to)
            for kind in ("perfetto", "html", "csv", "parquet", "markdown")
        ),
    ):
        result = CliRunner().invoke(main, [str(one) for one in command])
        assert result.exit_code == status, (command, result.output)
        assert "Traceback" not in result.output
        assert "root:" not in result.output
    said = CliRunner().invoke(main, ["info", str(run)]).output
    assert "rank 0 is left out" in said


def test_a_full_disk_is_not_blamed_on_the_file_that_is_read(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, threads=1, steps=1, ops=4))

    def put(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        Contents(run, run.ranks, None, None).write(put)
