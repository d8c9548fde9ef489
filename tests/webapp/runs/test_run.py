"""Run: what open_run makes of a directory, on one axis, in one order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lanescope.collector.format import schema
from lanescope.webapp.analysis.findings import findings
from lanescope.webapp.bundles.writer import pack
from lanescope.webapp.runs import run as run_module
from lanescope.webapp.runs.clock_axis import Axis
from lanescope.webapp.runs.run import Run, RunError, open_run
from lanescope.webapp.runs.table_reader import Rows
from tests.support.synthetic import START_NS, Builder, write_run

T = START_NS


def opened(builder: Builder) -> Run:
    return open_run(builder.write())


def column(run: Run, table: str, name: str, **where: Any) -> list[Any]:
    return run.events(table, columns=[name], **where)[name].to_pylist()


def test_counts_ranks_and_threads(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=3, threads=2, steps=4, ops=10))
    assert run.ranks == (0, 1, 2)
    assert run.world_size == 3
    assert run.missing_ranks == ()
    assert run.complete
    assert run.warnings == ()
    assert dict(run.counts) == {
        "op": 3 * 2 * 4 * 10,
        "collective": 3 * 4,
        "phase": 3 * 2 * 4 * 4,
        "gradient": 3 * 4 * 4,
        "sync": 3 * 4,
        "value": 3 * 4,
        "access": 0,
        "tensor": 0,
        "stall": 0,
        "stack": 3,
        "source": 0,
        "storage": 0,
        "thread": 6,
        "module": 9,
        "parameter": 0,
        "activation": 0,
        "node": 0,
        "fx": 0,
    }
    assert run.counts_of(1)["op"] == 2 * 4 * 10
    assert [t.key for t in run.threads] == [
        "0/1000-0",
        "0/1000-1",
        "1/1001-0",
        "1/1001-1",
        "2/1002-0",
        "2/1002-1",
    ]
    on_disk = sum(f.stat().st_size for f in (tmp_path / "run").rglob("*.parquet"))
    assert run.size_bytes == on_disk
    assert run.title == str(tmp_path / "run")


@pytest.mark.parametrize("table", list(schema.TABLES))
def test_every_table_comes_back_as_written(table: str, tmp_path: Path) -> None:
    shape = schema.TABLES[table]
    thread = "1000-0" if shape.per_thread else None
    builder = Builder(tmp_path / "run")
    builder.thread()
    if table != "thread":
        builder.rows(table, 0, thread, **{c.name: _samples(c, builder) for c in shape.columns})
    builder.phase(T, 10)
    written = [] if table == "thread" else builder._tables[0, thread, table][0].to_pylist()
    run = opened(builder)
    found = run.events(table, columns=[c.name for c in shape.columns])
    assert found.schema.names == [c.name for c in shape.columns]
    assert found.schema.types == [c.type for c in shape.columns]
    back = Axis(run.origin_ns, 0.0, 0).apply(found, 0).to_pylist()
    for row in written:
        assert row in back
    if table == "thread":
        assert back[0]["thread"] == "1000-0"
        assert back[0]["start_ns"] == T


def _samples(column: schema.Column, builder: Builder) -> list[object]:
    if column.name in ("start_ns", "time_ns"):
        return [T, T + 1, T + 2]
    if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
        return ["", "a b", "\N{GREEK SMALL LETTER ALPHA}"]
    if pa.types.is_list(column.type):
        return [[], [{"file": "a.py", "line": 3, "function": "f"}], []]
    if pa.types.is_boolean(column.type):
        return [True, False, True]
    if pa.types.is_floating(column.type):
        return [0.5, None, -1e300]
    if column.name == "pid":  # whose clock the row goes by
        return [1000, 1000, 1000]
    return [0, 1, 2] if column.name in ("depth", "step") else [7, None, 9]


def test_rows_are_sorted_by_rank_thread_start_and_depth(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    builder.op(T + 5, 1, "b", rank=1, thread="1001-0")
    # Thread 10 comes after thread 2 although its name sorts before; the child process comes last
    # although its number is lower.
    builder.thread(0, 1000, 0)
    builder.process(0, pid=7, role="child")
    for start, name, thread in (
        (T + 3, "late", "1000-0"),
        (T + 1, "early", "1000-0"),
        (T, "worker", "7-0"),
        (T + 2, "tenth", "1000-10"),
        (T + 2, "second", "1000-2"),
    ):
        builder.op(start, 1, name, thread=thread)
    builder.op(T + 9, 0, "inner", depth=1)
    builder.op(T + 9, 4, "outer", depth=0)
    run = opened(builder)
    assert [t.key for t in run.threads] == [
        "0/1000-0",
        "0/1000-2",
        "0/1000-10",
        "0/7-0",
        "1/1001-0",
    ]
    names = ["early", "late", "outer", "inner", "second", "tenth", "worker", "b"]
    assert column(run, "op", "name") == names
    assert column(run, "op", "thread") == ["1000-0"] * 4 + ["1000-2", "1000-10", "7-0", "1001-0"]
    assert column(run, "op", "rank") == [0] * 7 + [1]


def test_rows_of_one_rank_or_thread(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=1, ops=4))
    assert set(column(run, "op", "rank", rank=1)) == {1}
    assert column(run, "op", "thread", rank=1, thread="1001-1") == ["1001-1"] * 4
    assert run.events("gradient", rank=0, thread="1000-1").num_rows == 0
    chosen = run.events("op", rank=0, columns=["thread", "name", "rank"])
    assert chosen.column_names == ["thread", "name", "rank"]


def test_a_table_that_is_not_there_is_empty_with_its_schema(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(T, 1)
    run = opened(builder)
    for table in schema.TABLES:
        found = run.events(table)
        names = [c.name for c in schema.TABLES[table].columns]
        extra = ["rank", "thread"] if schema.TABLES[table].per_thread else ["rank"]
        assert found.column_names == [*names, *extra]
        assert found.num_rows == {"op": 1, "thread": 1}.get(table, 0)


def test_questions_about_missing_things_are_refused(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=4)
    for rank in (0, 1, 3):
        builder.op(T, 1, rank=rank, thread=f"{1000 + rank}-0")
    run = opened(builder)
    with pytest.raises(RunError, match="rank 2: no such rank; this run has 0-1, 3 of 4"):
        run.events("op", rank=2)
    with pytest.raises(RunError, match="no table 'ops', expected one of op, collective"):
        run.events("ops")
    with pytest.raises(RunError, match="table op has no column 'end', expected one of start_ns"):
        run.events("op", columns=["end"])
    with pytest.raises(RunError, match="no thread '1-1', expected one of 1000-0, 1001-0, 1003-0"):
        run.events("op", thread="1-1")


def test_parts_of_different_dictionaries_become_one_table(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    builder.op(T, 1, "x", rank=0)
    builder.op(T, 1, "y", rank=1, thread="1001-0")
    name = opened(builder).events("op")["name"]
    assert name.to_pylist() == ["x", "y"]
    assert {tuple(chunk.dictionary.to_pylist()) for chunk in name.chunks} == {("x", "y")}


def test_a_thread_that_no_table_names_is_there_all_the_same(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(T, 10)
    builder.op(T + 5, 100, thread="1000-3")
    del builder._threads[0, "1000-3"]
    run = opened(builder)
    lost = run.threads[1]
    assert (lost.thread, lost.name, lost.kind) == ("1000-3", "thread 1000-3", "native")
    assert (lost.start_ns, lost.end_ns) == (5, 105)
    assert run.duration_ns == 105


def test_threads_know_their_process(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.process(0, argv=["/data/train.py", "--epochs", "3"])
    builder.thread(0, ordinal=0, name="MainThread", native_id=42)
    builder.process(0, pid=1500, role="child", argv=[])
    builder.thread(0, 1500, 0, kind="main")
    builder.op(T, 1)
    main, child = opened(builder).threads
    assert (main.native_id, main.name, main.kind, main.role) == (42, "MainThread", "main", "rank")
    assert main.process_name == "train.py"
    assert (child.pid, child.ordinal, child.role, child.process_name) == (1500, 0, "child", "")


def test_warnings_say_what_is_missing_and_uncertain(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=4, complete=False, notes=["a note"])
    builder.process(0, closed=False)
    builder.process(2, clock={"host": "other", "calibrated": False, "uncertainty_ns": 10**9})
    builder.op(T, 1)
    builder.op(T, 1, rank=2, thread="1002-0")
    run = opened(builder)
    assert run.missing_ranks == (1, 3)
    assert not run.complete
    assert not run.clock_calibrated
    assert run.warnings == (
        "ranks 1, 3 of 4 missing from the run",
        "rank 0: process 1000 did not close its log (still running, or it died); its events end "
        "where the log ends",
        "the clock of rank 2 was not calibrated: times of different hosts are aligned by wall "
        "clock only",
        "a note",
    )


def test_processes_that_ended_alike_are_one_warning(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=8)
    for rank in range(8):
        ended = "abort" if rank == 7 else "signal SIGTERM" if rank < 5 else ""
        builder.process(rank, closed=False, ended=ended)
        builder.op(T, 1, rank=rank, thread=f"{1000 + rank}-0")
    builder.manifest["processes"][6]["gone"] = True
    assert opened(builder).warnings == (
        "ranks 0-4: 5 processes were ended by SIGTERM; their events end where their logs end",
        "rank 5: process 1005 did not close its log (still running, or it died); its events end "
        "where the log ends",
        "rank 6: process 1006 was killed, or left by os._exit; its events end where the log ends",
        "rank 7: process 1007 was ended by --on-hang abort; its events end where the log ends",
    )


def test_an_impossible_length_is_named(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(T, 1)
    builder.op(T + 200 * 86_400 * 10**9, 1)
    assert opened(builder).warnings[0].startswith("the events span 200 days, more than the 104")


def test_drops_are_summed_and_filters_are_not_drops(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    builder.process(0, coverage={"dropped": 3, "filtered": 100})
    builder.process(1, coverage={"dropped": 4, "dropped_stack": 1})
    builder.op(T, 1)
    builder.op(T, 1, rank=1, thread="1001-0")
    run = opened(builder)
    assert run.dropped == 8
    assert run.dropped_of(1) == 5
    assert run.coverage == {"dropped": 7, "filtered": 100, "dropped_stack": 1}


def test_the_etag_changes_with_the_run(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=1)
    etag = open_run(path).etag
    assert open_run(path).etag == etag
    (path / "rank=00001" / "stack.parquet").unlink()
    damaged = open_run(path).etag
    assert damaged != etag
    other = write_run(tmp_path / "other", steps=2)
    assert open_run(other).etag not in (etag, damaged)


def test_a_run_cannot_be_changed(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", steps=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.origin_ns = 0
    with pytest.raises(TypeError):
        run.counts["op"] = 0


def test_opening_writes_nothing(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steps=1)

    def state() -> dict[str, str]:
        files = (f for f in path.rglob("*") if f.is_file())
        return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    before = state()
    run = open_run(path)
    for table in schema.TABLES:
        run.events(table)
    assert state() == before


def test_a_table_replaced_while_recording_is_read_alone(tmp_path: Path) -> None:
    # The compactor renames a longer thread table into place before the manifest says so.
    builder = Builder(tmp_path / "run", complete=False)
    builder.op(T, 1)
    path = builder.write()
    old = json.loads((path / schema.MANIFEST).read_text())
    builder.thread(0, ordinal=1, start_ns=T, end_ns=T)
    builder._tables = {k: v for k, v in builder._tables.items() if k[2] != "thread"}
    builder.write()
    (path / schema.MANIFEST).write_text(json.dumps(old))
    run = open_run(path)
    assert [t.thread for t in run.threads] == ["1000-0", "1000-1"]


def test_equal_arguments_write_equal_runs(tmp_path: Path) -> None:
    one, two = (json.loads((write_run(tmp_path / n) / "manifest.json").read_text()) for n in "ab")
    assert one == two


def test_a_run_of_an_older_format_lacks_its_newer_columns(tmp_path: Path) -> None:
    newer = {
        name: [column.name for column in table.columns if column.since > 1]
        for name, table in schema.TABLES.items()
    }
    assert "runnable_ns" in newer["collective"]
    full = open_run(write_run(tmp_path / "new", ranks=2, threads=2, steps=3, ops=20))
    path = write_run(tmp_path / "old", ranks=2, threads=2, steps=3, ops=20)
    manifest = json.loads((path / schema.MANIFEST).read_text())
    manifest["format"] = 1
    for name, answer in manifest["files"].items():
        table = pq.read_table(path / name, partitioning=None)
        known = newer[Path(name).name.split("-")[0].removesuffix(".parquet")]
        pq.write_table(table.drop_columns(known), path / name)
        data = (path / name).read_bytes()
        answer |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / schema.MANIFEST).write_text(json.dumps(manifest))
    run = open_run(path)
    assert run.warnings == ()
    assert run.counts == full.counts
    assert column(run, "collective", "runnable_ns") == [None] * run.counts["collective"]
    assert column(run, "collective", "name") == column(full, "collective", "name")
    assert [one.title for one in findings(run)] == [one.title for one in findings(full)]
    pack(run, tmp_path / "old.lanes")
    packed = open_run(tmp_path / "old.lanes")
    assert packed.manifest["format"] == 1
    assert packed.counts == full.counts


def test_a_run_that_is_deleted_while_it_is_open_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", ranks=1, threads=1, steps=2, ops=10)
    run = open_run(path)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is gone; the run was deleted or moved"):
        run.events("op", 0)
    with pytest.raises(RunError, match="open the run where it is now"):
        next(run.pieces("op", 0, columns=["name"]))
    (tmp_path / "elsewhere").rename(path)
    assert run.events("op", 0).num_rows


def test_steps_are_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, steps=3))
    found = [run.steps(rank) for rank in run.ranks]
    monkeypatch.setattr(Rows, "read", None)
    assert [run.steps(rank) for rank in run.ranks] == found
    assert [steps.index.tolist() for steps in found] == [[0, 1, 2]] * 2
    with pytest.raises(RunError, match="rank 2: no such rank"):
        run.steps(2)


def test_phases_are_read_once_and_are_what_the_files_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "run", ranks=2, threads=3, steps=3)
    asked: list[tuple[int | None, list[str] | None]]
    asked = [(None, None), (1, ["kind", "rank"]), (0, ["thread", "start_ns"])]
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_KEPT_ROWS", 0)
        read = open_run(path)
        plain = [read.events("phase", rank, columns=columns) for rank, columns in asked]
    run = open_run(path)
    kept = [run.events("phase", rank, columns=columns) for rank, columns in asked]
    for one, other in zip(kept, plain, strict=True):
        assert one.schema == other.schema
        assert one.to_pylist() == other.to_pylist()
    with pytest.raises(RunError, match="no_such"):
        run.events("phase", columns=["no_such"])
    monkeypatch.setattr(Rows, "read", None)
    assert run.events("phase", 1, columns=["kind", "rank"]).equals(kept[1])
