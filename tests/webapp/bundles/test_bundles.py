"""A bundle says what its run says, byte for byte the same each time, and is read where it is."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from lanescope.collector.format import schema
from lanescope.webapp.bundles.verify import problems_of
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs import storage
from lanescope.webapp.runs.bundle import BUNDLE
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.notes import Notes
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.bundled import NOTES, lanescope
from tests.support.growing import begin, write_ops
from tests.support.synthetic import START_NS, Builder


def same_rows(one: Run, other: Run) -> None:
    for table in schema.TABLES:
        for rank in one.ranks:
            assert one.events(table, rank).equals(other.events(table, rank)), (table, rank)


def test_a_bundle_is_its_run(whole: Path, bundle: Path, tmp_path: Path) -> None:
    run, packed = open_run(whole), open_run(bundle)
    assert packed.etag == run.etag
    assert packed.manifest == run.manifest
    assert packed.warnings == ()
    assert packed.threads == run.threads
    same_rows(run, packed)
    assert Notes(packed.files).read()[0] == NOTES
    assert "bundle" in Notes(packed.files).why_not
    with pytest.raises(RunError, match="bundle"):
        Notes(packed.files).write(NOTES, Notes(packed.files).read()[1])
    assert lanescope("diff", whole, bundle).exit_code == 0


def test_commands_open_a_bundle(whole: Path, bundle: Path) -> None:
    for command in ("info", "check"):
        answer = [lanescope(command, "--json", path) for path in (whole, bundle)]
        assert answer[0].exit_code == answer[1].exit_code
        answers = [json.loads(one.stdout) for one in answer]
        assert answers[0] | {"run": ""} == answers[1] | {"run": ""}


def test_the_same_run_gives_the_same_bytes(whole: Path, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    os.utime(copy / schema.MANIFEST, (0, 0))
    pack(open_run(copy), tmp_path / "again.lanes")
    assert (tmp_path / "again.lanes").read_bytes() == bundle.read_bytes()
    # An unzipper takes it for what it is: a zip file in which nothing is compressed.
    with zipfile.ZipFile(bundle) as archive:
        assert archive.testzip() is None
        listed = json.loads(archive.read(BUNDLE))["members"]
        for entry in archive.infolist():
            assert entry.compress_type == zipfile.ZIP_STORED
            if entry.filename != BUNDLE:
                digest = hashlib.sha256(archive.read(entry)).hexdigest()
                assert listed[entry.filename] == {"bytes": entry.file_size, "sha256": digest}
        archive.extractall(tmp_path / "out")
    same_rows(open_run(tmp_path / "out"), open_run(whole))


def test_some_ranks(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "some.lanes"
    assert lanescope("pack", whole, "-o", target, "--ranks", "1,3").exit_code == 0
    run = open_run(target)
    assert run.ranks == (1, 3)
    assert run.warnings == ("ranks 0, 2 of 4 missing from the run",)
    assert not run.complete
    assert lanescope("verify", target).stdout == f"{target}: whole, ranks 1, 3 of 4\n"
    assert (
        open_run(whole)
        .events("op", 3)
        .select(["name"])
        .equals(run.events("op", 3).select(["name"]))
    )
    # Instants count from the first event, which is another one; lanes have other numbers.
    kept = Notes(run.files).read()[0]
    assert [one["t0"] for one in kept["notes"]] == [2_499_000]
    assert kept["views"][0]["search"] == "?t=2399000-2699000&q=mm"


def test_some_steps(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "window.lanes"
    result = lanescope("pack", whole, "-o", target, "--steps", "2:3")
    assert result.exit_code == 0, result.stderr
    run, all_of_it = open_run(target), open_run(whole)
    assert run.warnings == ("only the steps 2 to 2 were packed",)
    assert set(run.events("phase")["step"].to_pylist()) == {2}
    assert run.counts["op"] == 4 * 2 * 12
    ops = all_of_it.events("op", 0).to_pylist()
    wanted = [op["name"] for op in ops if op["step"] == 2]
    assert run.events("op", 0)["name"].to_pylist() == wanted
    assert run.duration_ns < 1_200_000
    assert [one["text"] for one in Notes(run.files).read()[0]["notes"]] == ["in step 2"]
    assert lanescope("verify", target).exit_code == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ranks", "7"], "rank 7: no such rank; this run has 0-3 of 4"),
        (["--ranks", "a"], "--ranks is 'a', expected ranks such as 0,2-5"),
        (["--ranks", "3-1"], "expected ranks such as"),
        (["--steps", "5"], "expected A:B with A before B"),
        (["--steps", "3:3"], "expected A:B with A before B"),
        (["--steps", "90:99"], "no event has a step from 90 to 98; the run has 0 to 3"),
    ],
)
def test_missing_files_are_refused(
    whole: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    result = lanescope("pack", whole, "-o", tmp_path / "no.lanes", *options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_rows_behind_the_last_step_are_of_no_step(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    for step in range(3):
        builder.op(START_NS + step * 100, 10, step=step)
        builder.phase(START_NS + step * 100 + 50, 10, "optimizer", step=step)
    builder.row("access", 0, "1000-0", start_ns=START_NS + 900, duration_ns=1)
    path = builder.write()
    assert lanescope("pack", path, "-o", tmp_path / "some.lanes", "--steps", "1:9").exit_code == 0
    result = lanescope("pack", path, "-o", tmp_path / "none.lanes", "--steps", "9:12")
    assert "no event has a step from 9 to 11; the run has 0 to 2" in result.stderr


def test_what_a_dead_process_left_is_packed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_ops(begin(path, host="another"), 0, 25)  # a child and a parent each
    run = open_run(path)
    pack(run, tmp_path / "dead.lanes")
    packed = open_run(tmp_path / "dead.lanes")
    same_rows(run, packed)
    assert packed.counts["op"] == 50
    assert packed.warnings == run.warnings
    assert any("did not close its log" in text for text in packed.warnings)
    assert problems_of(tmp_path / "dead.lanes")[1] == []


def test_a_bundle_is_read_through_a_file_system_of_any_kind(
    whole: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As from an object store: by requests for parts, here of files of this machine.
    monkeypatch.setattr(storage, "FETCHED_BYTES", 5000)
    address = bundle.as_uri()
    run = open_run(address)
    assert run.files.place == run.title == address
    same_rows(open_run(whole), run)
    assert Timeline.open(run).index.lanes == Timeline.open(open_run(bundle)).index.lanes
    assert lanescope("verify", address).exit_code == 0
    copy = f"{address}.copy"
    assert lanescope("pack", address, "-o", copy).exit_code == 0
    assert Path(f"{bundle}.copy").read_bytes() == bundle.read_bytes()
    for wrong, said in (
        (f"{address}.no", "no such object; expected a bundle"),
        ("nosuch://bucket/x.lanes", "expected a path, or the address of an object"),
    ):
        result = lanescope("info", wrong)
        assert result.exit_code == 2
        assert said in result.stderr
