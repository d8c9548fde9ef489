"""`lanescope time`: what people read, and the object of `--json`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lanescope.webapp.cli import main
from tests.support.synthetic import Builder
from tests.webapp.plugins.time.test_breakdown import call, op, training_step
from tests.webapp.plugins.time.test_critical_path import straggling


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    builder = Builder(tmp_path_factory.mktemp("time") / "run", world_size=2)
    return str(straggling(builder).path)


def test_categories_add_up_and_the_path_is_as_long_as_the_step(run: str) -> None:
    result = CliRunner().invoke(
        main, ["time", run, "--step", "0", "--what-if", "data=0", "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert {one["step"] for one in found["steps"]} == {0}
    for one in found["steps"]:
        assert sum(one["breakdown"].values()) == one["duration_ns"]
    assert set(found["critical_path"][0]) == {
        *("category", "name", "rank", "thread", "duration_ns", "where")
    }
    assert found["critical_path"][0]["duration_ns"] > 0
    (prediction,) = found["what_if"]
    assert prediction["spec"] == "data=0"
    assert prediction["step_ns"] == 85_000_000
    assert found["slowdown"]["job"] == pytest.approx(95 / 82.5)
    assert found["slowdown"]["slowest_workers"]["ranks"] == [1]
    assert found["slowdown"]["last_stage"] == {"ranks": [], "share": None}


def test_what_people_read(run: str) -> None:
    result = CliRunner().invoke(main, ["time", run], catch_exceptions=False)
    assert result.exit_code == 0
    for words in (
        "Time of a step by category",
        "Critical path of step 0",
        "aten::slow",
        "rank 1 as fast as the others",
        "Slowdown by stragglers: x1.15",
    ):
        assert words in result.stdout


def test_what_cannot_be_answered(run: str, tmp_path: Path) -> None:
    wrong = CliRunner().invoke(main, ["time", run, "--what-if", "speed=2"])
    assert wrong.exit_code == 2
    assert "'speed=2' is not a what-if; expected" in wrong.output
    missing = CliRunner().invoke(main, ["time", run, "--step", "999"])
    assert missing.exit_code == 2
    assert "no step 999" in missing.output
    nowhere = CliRunner().invoke(main, ["time", str(tmp_path / "none")])
    assert nowhere.exit_code == 2


def test_a_damaged_file_is_not_called_wrong_usage(run: str, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (file,) = copy.glob("rank=00000/thread=*/op-*.parquet")
    data = bytearray(file.read_bytes())
    data[4:60] = bytes(56)
    file.write_bytes(data)
    answer = CliRunner().invoke(main, ["time", str(copy)])
    assert answer.exit_code == 2
    assert answer.stderr.startswith(f"lanescope: {copy}")
    assert answer.stderr.count("\n") == 1
    assert "the file is damaged" in answer.stderr


def test_against_a_baseline(run: str, tmp_path: Path) -> None:
    """Backward of the baseline lasts 10 ms less on rank 1, and nothing else changes but waiting."""
    builder = Builder(tmp_path / "base", world_size=2)
    for rank in (0, 1):
        training_step(builder, rank)
        op(builder, 66, 70, rank)
        op(builder, 30, 40 if rank == 0 else 50, rank)
        call(builder, rank, 40 if rank == 0 else 50, 65, duration_ns=0)
    base = str(builder.write())
    args = ["time", run, "--baseline", base]
    shown = CliRunner().invoke(main, args, catch_exceptions=False)
    lines = [line.split() for line in shown.stdout.partition("Against the baseline")[2].split("\n")]
    assert ["waiting", "for", "other", "ranks", "5.00", "ms", "10.0", "ms", "+5.00", "ms"] in lines
    assert ["whole", "step", "90.0", "ms", "92.5", "ms", "+2.50", "ms"] in lines
    found = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    (before,) = found["baseline"]
    assert before["breakdown"]["waiting_for_ranks"] == 5_000_000
    assert sum(before["breakdown"].values()) == before["duration_ns"] == 90_000_000
