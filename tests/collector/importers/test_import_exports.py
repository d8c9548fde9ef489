"""What `export --to perfetto` writes imports back to the same events."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.exporters.perfetto import write_trace
from lanescope.webapp.runs.run import Run, open_run
from tests.support.synthetic import START_NS, Builder, write_run
from tests.support.trace_files import accounted, imported, rows


def there_and_back(run: Run, folder: Path) -> Run:
    """The run, exported and imported."""
    path = folder / "trace.json"
    with path.open("w") as sink:
        write_trace(run, sink)
    found = imported(folder / "again", path)
    accounted(found)
    return found


@pytest.mark.parametrize("table", ["op", "phase", "value", "collective"])
def test_a_run_of_two_ranks_comes_back(table: str, tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, steps=3))
    again = there_and_back(run, tmp_path)
    assert (again.ranks, again.world_size, again.dropped) == (run.ranks, run.world_size, 0)
    columns: dict[str, list[str]] = {
        "op": [
            "start_ns",
            "duration_ns",
            "self_ns",
            "name",
            "depth",
            "step",
            "sequence",
            "shapes",
            "dtypes",
        ],
        "phase": ["start_ns", "duration_ns", "name", "kind", "depth", "step"],
        "value": ["time_ns", "name", "value", "step"],
        "collective": [
            "start_ns",
            "duration_ns",
            "complete_ns",
            "name",
            "group",
            "group_size",
            "sequence",
            "bytes",
            "step",
            "shapes",
            "dtypes",
            "peer",
            "reduce_op",
        ],
    }
    assert {t.name for t in again.threads} == {t.name for t in run.threads}
    for rank in run.ranks:
        for thread in (t for t in run.threads if t.rank == rank):
            (partner,) = (t for t in again.threads if (t.rank, t.name) == (rank, thread.name))
            mine = rows(run, table, *columns[table], rank=rank, thread=thread.thread)
            theirs = rows(again, table, *columns[table], rank=rank, thread=partner.thread)
            known = [row for row in theirs if "gradient norm" not in row]
            assert sorted(known, key=str) == sorted(mine, key=str)


def test_what_only_looks_like_a_phase_comes_back_as_what_it_was(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    main = builder.thread()
    builder.op(START_NS, 100, "DistributedDataParallel.forward", thread=main, scope="user")
    builder.op(START_NS + 10, 60, "aten::mm", thread=main, depth=1)
    run = open_run(builder.write())
    again = there_and_back(run, tmp_path)
    for table, columns in (("op", ("start_ns", "name", "scope", "depth")), ("phase", ("name",))):
        assert rows(again, table, *columns) == rows(run, table, *columns)


def test_streams_and_their_launches_come_back(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    main = builder.thread()
    stream = builder.thread(ordinal=1, name="stream 7 (cuda:1)", kind="stream", native_id=0)
    builder.op(START_NS, 100, "aten::mm", thread=main)
    builder.op(START_NS + 200, 60, "MmBackward0", thread=main, scope="backward")
    for start, launch in ((50, 10), (150, 30)):
        builder.op(
            START_NS + start,
            40,
            "gemm",
            thread=stream,
            scope="kernel",
            device="cuda:1",
            launch_ns=START_NS + launch,
            launch_thread=main,
        )
    run = open_run(builder.write())
    again = there_and_back(run, tmp_path)
    columns = ("name", "scope", "start_ns", "device", "launch_ns")
    assert rows(again, "op", *columns) == rows(run, "op", *columns)
    (kernels,) = (t for t in again.threads if t.kind == "stream")
    assert kernels.name == "stream 7 (cuda:1)"
    launching = {thread for (thread,) in rows(again, "op", "launch_thread", thread=kernels.thread)}
    assert launching == {again.threads[0].thread}
