"""The example program: it trains, repeats its bits, and recording it changes none of them."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.processes import fork_program, output_of, without

PROGRAM = ROOT / "examples/train_gpt.py"
SCRIPTS = Path(sysconfig.get_path("scripts"))
SMALL = (
    "--layers=2",
    "--dim=32",
    "--seq=32",
    "--steps=6",
    "--text-bytes=60000",
    "--eval-every=2",
    "--eval-batches=2",
    "--checkpoint-every=3",
)
TWO_RANKS = (SCRIPTS / "torchrun", "--standalone", "--nproc-per-node=2", PROGRAM)


def run(*command: str | Path) -> str:
    """Standard output of a command that must succeed."""
    return output_of(*command, environment=without("LANESCOPE"))


def fork(*arguments: str, ranks: int = 0) -> str:
    """The same of the program, forked."""
    done = fork_program(PROGRAM, *SMALL, *arguments, ranks=ranks)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What two ranks compute when they are not recorded."""
    file = tmp_path_factory.mktemp("plain") / "losses"
    fork(f"--losses={file}", ranks=2)
    return file.read_text()


def test_one_process_needs_no_launcher_and_leaves_no_checkpoints(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    said = fork("--workers=0", f"--checkpoints={kept}", f"--losses={tmp_path / 'losses'}")
    assert "held-out loss" in said
    assert sorted(file.name for file in kept.iterdir()) == [
        "step-00002-rank-0.pt",
        "step-00005-rank-0.pt",
    ]
    steps = [line.split() for line in (tmp_path / "losses").read_text().splitlines()]
    assert [(step, rank) for step, rank, _ in steps] == [(str(k), "0") for k in range(6)]


@pytest.mark.slow
def test_an_error_in_a_side_thread_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "step-00002-rank-0.partial").mkdir()  # where the checkpoint thread wants a file
    done = fork_program(PROGRAM, *SMALL, f"--checkpoints={tmp_path}")
    assert done.returncode == 1
    assert "torch.save" in done.stderr


@pytest.mark.torchrun
def test_losses_go_down_and_differ_between_ranks(losses: str) -> None:
    rows = [line.split() for line in losses.splitlines()]
    value = {(int(step), int(rank)): float.fromhex(loss) for step, rank, loss in rows}
    assert len(value) == 12
    assert value[5, 0] < value[0, 0]
    assert value[0, 0] != value[0, 1]


@pytest.mark.slow
@pytest.mark.torchrun
def test_a_slow_rank_changes_no_bit(losses: str, tmp_path: Path) -> None:
    fork("--slow-rank=1", "--slow-ms=5", f"--losses={tmp_path / 'losses'}", ranks=2)
    assert (tmp_path / "losses").read_text() == losses


@pytest.mark.slow
@pytest.mark.torchrun
def test_recording_changes_no_bit_and_sees_every_kind_of_event(losses: str, tmp_path: Path) -> None:
    record = (SCRIPTS / "lanescope", "record", "-o", tmp_path / "run", "--")
    run(*record, *TWO_RANKS, *SMALL, f"--losses={tmp_path / 'losses'}")
    assert (tmp_path / "losses").read_text() == losses

    info = json.loads(run(SCRIPTS / "lanescope", "info", tmp_path / "run", "--json"))
    assert info["world_size"] == 2
    assert info["ranks"] == [0, 1]
    assert info["steps"] == 6
    assert info["threads"] >= 2 * 3, "per rank: training, evaluator, checkpoint"
    assert info["complete"]
    assert info["dropped"] == 0
    assert {kind for kind, count in info["events"].items() if count == 0} == set()
    # Two ranks on too few processors may keep each other waiting.
    report = json.loads(run(SCRIPTS / "lanescope", "check", tmp_path / "run", "--json"))
    found = [one for one in report["findings"] if one["severity"] != "info"]
    assert {one["kind"] for one in found} <= {"straggler"}
