"""The catalogue of a run's files: the same answers with it as without, whatever happens to it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.compaction import catalogue as writer
from lanescope.collector.compaction.catalogue import write_catalogue
from lanescope.collector.format.catalogue import CATALOGUE, WORDS_OF
from lanescope.collector.format.file_names import PART_CATALOGUE
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.bundles.merge_ranks import merge
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.commands.info import summary
from lanescope.webapp.runs import consistent_read
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.run import Run, open_run
from lanescope.webapp.timeline.span_details import opening
from tests.support.run_builder import START_NS, Builder
from tests.support.synthetic import write_run

OP = "rank=00001/thread=1001-0/op-00000.parquet"


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also runs of few files get a catalogue."""
    monkeypatch.setattr(writer, "WORTH_LISTING", 1)


@pytest.fixture
def run(tmp_path: Path, listed: None) -> Path:
    """A run of two ranks on drifting clocks, with its catalogue."""
    path = write_run(tmp_path / "run", ranks=2, threads=2)
    manifest = json.loads((path / "manifest.json").read_text())
    for process in manifest["processes"]:
        process["clock"] |= {"drift_ppb": 12_345.6, "offset_ns": 77}
    (path / "manifest.json").write_text(json.dumps(manifest))
    write_catalogue(path, manifest)
    return path


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files whose footers are parsed."""
    seen: list[str] = []
    checked = consistent_read._checked

    def counted(files: Any, table: str, path: str, size: int) -> tuple[int, int]:
        seen.append(path)
        return checked(files, table, path, size)

    monkeypatch.setattr(consistent_read, "_checked", counted)
    return seen


def answers(run: Run) -> dict[str, Any]:
    """What opening a run and asking of it gives."""
    return {
        "etag": run.etag,
        "summary": summary(run) | {"run": ""},
        "threads": run.threads,
        "steps": [[a.tolist() for a in vars(run.steps(rank)).values()] for rank in run.ranks],
        "ops": run.events("op", window=(0, 500_000)).to_pylist(),
        "words": [texts_of(run, table, column) for table, column in WORDS_OF.items()],
        "opening": opening(run),
        "about": run.rows_about("op", (0, 500_000)),
    }


def without(path: Path) -> dict[str, Any]:
    """The answers of a copy of the run without a catalogue."""
    copy = path.with_name("without")
    shutil.copytree(path, copy)
    (copy / PART_CATALOGUE).unlink(missing_ok=True)
    found = answers(open_run(copy))
    shutil.rmtree(copy)
    return found


def test_no_file_is_opened_and_all_answers_are_the_same(run: Path, looked_into: list[str]) -> None:
    opened = open_run(run)
    assert looked_into == []
    assert answers(opened) == without(run)


def test_a_copy_with_other_times_is_not_read_again(run: Path, looked_into: list[str]) -> None:
    for file in run.rglob("*.parquet"):
        os.utime(file, ns=(1, 1))
    open_run(run)
    assert looked_into == []


def test_a_damaged_file_leaves_out_its_rank(run: Path) -> None:
    data = bytearray((run / OP).read_bytes())
    data[-20] ^= 0xFF
    (run / OP).write_bytes(data)
    opened = open_run(run)
    assert opened.ranks == (0,)
    assert any("its footer is garbled" in one or "damaged" in one for one in opened.warnings)


def test_a_truncated_and_a_missing_file_are_named(run: Path) -> None:
    data = (run / OP).read_bytes()
    (run / OP).write_bytes(data[:-8])
    assert "is truncated" in " ".join(open_run(run).warnings)
    (run / OP).unlink()
    assert "is missing" in " ".join(open_run(run).warnings)


def test_a_file_that_was_replaced_is_read(run: Path, looked_into: list[str]) -> None:
    table = pq.read_table(run / OP, partitioning=None).slice(0, 10)
    pq.write_table(table, run / OP)
    manifest = json.loads((run / "manifest.json").read_text())
    entry = {"bytes": (run / OP).stat().st_size, "rows": 10, "sha256": "0" * 64}
    manifest["files"][OP] = entry
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert open_run(run).counts_of(1)["op"] < open_run(run).counts_of(0)["op"]
    assert set(looked_into) == {OP}
    assert answers(open_run(run)) == without(run)


def _garbage(path: Path) -> None:
    path.write_bytes(b"PAR1" + bytes(range(256)) * 8 + b"PAR1")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _of_another_version(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"lanescope.catalogue": "99"}), path)


def _changed(column: str, value: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        rows = pq.read_table(path).to_pylist()
        for row in rows:
            row[column] = value(row) if callable(value) else value
        pq.write_table(pa.Table.from_pylist(rows, schema=CATALOGUE), path)

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        _garbage,
        _cut,
        _of_another_version,
        _changed("path", "rank=00000/thread.parquet"),
        _changed("rows", lambda row: row["rows"] + 1),
        _changed("rows", None),
        _changed("bytes", 1 << 62),
        _changed("sha256", ""),
        _changed("group_rows", lambda row: [row["rows"] + 1, -1]),
        _changed("group_rows", lambda _: [None]),
        _changed("group_last_ns", lambda _: []),
        _changed("words", [None]),
        _changed("footer", None),
        _changed("changed_ns", None),
        _changed("steps_pid", 7),
        _changed("known_threads", lambda row: row["known_threads"] and [None]),
        _changed("steps", lambda row: row["steps"] and row["steps"][::-1]),
        _changed(
            "steps",
            lambda row: row["steps"] and [{"step": 0, "start_ns": -(1 << 62), "end_ns": 1 << 62}],
        ),
    ],
)
def test_a_catalogue_that_cannot_be_believed_is_passed_over(
    run: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(run / PART_CATALOGUE)
    for file in run.rglob("thread=*/*.parquet"):
        os.utime(file, ns=(1, 1))
    assert answers(open_run(run)) == without(run)


def test_a_forged_size_in_memory_is_found_as_the_file_is_read(run: Path) -> None:
    _changed("decoded", 1)(run / PART_CATALOGUE)
    opened = open_run(run)
    with pytest.raises(RunError, match=r"delete catalogue\.parquet of the run"):
        opened.events("op", 0)


def test_impossible_times_are_found(tmp_path: Path, listed: None) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 10)
    builder.op(START_NS + 2**60, -5)
    path = builder.write()
    write_catalogue(path, builder.manifest)
    assert "1 row of op has impossible times" in " ".join(open_run(path).warnings)
    assert answers(open_run(path)) == without(path)


def test_ranks_of_several_processes_get_their_steps_from_the_phases(
    tmp_path: Path, listed: None
) -> None:
    builder = Builder(tmp_path / "run")
    for pid, offset in ((1000, 0), (1001, 5000)):
        builder.process(0, pid, clock={"offset_ns": offset})
        builder.phase(START_NS + pid, 100, "optimizer", thread=f"{pid}-0", step=pid - 1000)
    path = builder.write()
    write_catalogue(path, builder.manifest)
    assert open_run(path).rows.listed_steps(0) is None
    assert answers(open_run(path)) == without(path)


def test_a_run_of_few_files_has_none(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / PART_CATALOGUE).write_bytes(b"of an earlier state")
    write_catalogue(path, json.loads((path / "manifest.json").read_text()))
    assert not (path / PART_CATALOGUE).exists()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A run of 36 ranks with more than a hundred files."""
    return write_run(tmp_path / "many", ranks=36, threads=1, steps=1, ops=2)


def test_a_bundle_brings_its_catalogue(many: Path, tmp_path: Path, looked_into: list[str]) -> None:
    pack(open_run(many), tmp_path / "all.lanes")
    looked_into.clear()
    opened = open_run(tmp_path / "all.lanes")
    assert looked_into == []
    assert opened.etag == open_run(many).etag
    assert summary(opened) | {"run": ""} == summary(open_run(many)) | {"run": ""}


@pytest.mark.slow
def test_a_merged_run_has_a_catalogue(many: Path, tmp_path: Path, looked_into: list[str]) -> None:
    for number, ranks in enumerate((range(18), range(18, 36))):
        pack(open_run(many), tmp_path / f"{number}.lanes", ranks=list(ranks))
    merge([open_run(tmp_path / f"{number}.lanes") for number in range(2)], tmp_path / "merged")
    looked_into.clear()
    opened = open_run(tmp_path / "merged")
    assert looked_into == []
    assert np.array_equal(opened.ranks, range(36))
