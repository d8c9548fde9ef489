"""Runs of different hosts become one: rows, clocks, notes; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from lanescope.collector.format import schema
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.cli import main
from lanescope.webapp.runs.files import Folder
from lanescope.webapp.runs.notes import Notes
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder, write_run


def merged(target: Path, *runs: Path) -> Result:
    return CliRunner().invoke(main, ["merge", *map(str, runs), "-o", str(target)])


def noted(path: Path, t0: int, text: str) -> None:
    notes = Notes(Folder(path))
    note = {"id": text, "t0": t0, "t1": t0 + 1, "lane": None, "text": text}
    notes.write({"format": 1, "notes": [note], "views": []}, notes.read()[1])


def host(path: Path, rank: int, *, axis: str, wall: int, offset: int = 0, **clock: Any) -> Path:
    """What one of two hosts records: one op at 100 ns of a clock of its own."""
    builder = Builder(
        path,
        world_size=2,
        complete=False,
        axis={"clock_identity": axis, "wall_minus_monotonic_ns": wall},
    )
    builder.process(rank, clock={"host": f"boot-{rank}", "offset_ns": offset, **clock})
    builder.op(START_NS + 100, 10, rank=rank, thread=f"{1000 + rank}-0")
    return builder.write()


def test_parts_of_a_run_become_the_run_again(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", ranks=4, threads=2, steps=2, ops=8)
    noted(whole, 2_000, "all see it")
    run = open_run(whole)
    pack(run, tmp_path / "a.lanes", ranks=[0, 2])
    pack(run, tmp_path / "b.lanes", ranks=[1, 2, 3])  # rank 2 is the same in both
    result = merged(tmp_path / "again", tmp_path / "b.lanes", tmp_path / "a.lanes")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{tmp_path / 'again'}: ranks 0-3 of 4\n"
    again = open_run(tmp_path / "again")
    assert again.warnings == ()
    assert again.complete
    assert again.manifest["processes"] == run.manifest["processes"]
    for table in schema.TABLES:
        assert again.events(table).equals(run.events(table))
    assert [note["t0"] for note in Notes(again.files).read()[0]["notes"]] == [2_000]


def starts(run: Run) -> list[int]:
    found: list[int] = run.events("op")["start_ns"].to_pylist()
    return found


def test_hosts_that_measured_their_clocks_stay_where_they_are(tmp_path: Path) -> None:
    first = host(tmp_path / "a", 0, axis="boot-0", wall=7)
    second = host(tmp_path / "b", 1, axis="boot-0", wall=7, offset=250, uncertainty_ns=40)
    assert merged(tmp_path / "run", second, first).exit_code == 0
    run = open_run(tmp_path / "run")
    assert run.complete
    assert starts(run) == [0, 250]
    assert run.clock_calibrated
    assert run.clock_uncertainty_ns == 40


def test_hosts_that_did_not_are_placed_by_wall_clock_and_said_to_be(tmp_path: Path) -> None:
    first = host(tmp_path / "a", 0, axis="boot-0", wall=1_000)
    second = host(tmp_path / "b", 1, axis="boot-1", wall=1_300)
    noted(second, 4, "of the second")
    result = merged(tmp_path / "run", first, second)
    assert result.exit_code == 0
    assert "was not calibrated" in result.stderr
    run = open_run(tmp_path / "run")
    assert starts(run) == [0, 300]
    assert not run.clock_calibrated
    assert run.clock_uncertainty_ns == 10**9
    assert Notes(run.files).read()[0]["notes"][0]["t0"] == 304


def test_two_runs_of_one_host_share_its_clock(tmp_path: Path) -> None:
    first = host(tmp_path / "a", 0, axis="boot-0", wall=1_000)
    second = host(tmp_path / "b", 1, axis="boot-0", wall=1_000, host="boot-0")
    assert merged(tmp_path / "run", first, second).exit_code == 0
    assert open_run(tmp_path / "run").clock_calibrated


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", ranks=2, threads=1, steps=1, ops=4)
    other = write_run(tmp_path / "other", ranks=2, threads=1, steps=1, ops=4, seed=9)
    third = write_run(tmp_path / "third", ranks=3, threads=1, steps=1, ops=4)
    for run, said in (
        (other, "with other events, in"),
        (third, "is of a job of 2 ranks and"),
    ):
        result = merged(tmp_path / "run", one, run)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()
    result = merged(one, other)
    assert result.exit_code == 2
    assert "exists already" in result.stderr


def test_groups_that_differ_are_of_different_jobs(tmp_path: Path) -> None:
    for rank, ranks in ((0, [0, 1]), (1, [1])):
        builder = Builder(
            tmp_path / str(rank), world_size=2, groups={"0": {"ranks": ranks, "description": ""}}
        )
        builder.op(START_NS, 1, rank=rank, thread=f"{1000 + rank}-0")
        builder.write()
    result = merged(tmp_path / "run", tmp_path / "0", tmp_path / "1")
    assert result.exit_code == 2
    assert "process group '0' has other ranks" in result.stderr
