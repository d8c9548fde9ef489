"""What `export --to perfetto` writes imports back to the same run, in every column."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.format import schema
from lanescope.collector.importers.import_limits import ImportRejected
from lanescope.collector.importers.workers import Fields
from lanescope.webapp.analysis.findings import findings
from lanescope.webapp.exporters.perfetto import write_trace
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder, write_run
from tests.support.trace_files import imported

PROGRAM = """
    import queue, threading
    import torch, torch.distributed as dist
    from torch import nn
    from lanescope import collector

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    optimizer = torch.optim.AdamW(model.parameters())
    items, shared = queue.Queue(), torch.zeros(4)

    def work():
        while (item := items.get()) is not None:
            item.sin()
            shared.add_(1)

    worker = threading.Thread(target=work, name="worker")
    worker.start()
    for step in range(3):
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        collector.value("loss", loss.item())
        collector.value("odd", float("nan") if step else float("-inf"))
        with collector.phase("evaluation"):
            items.put(torch.ones(3))
            shared.add_(1)
        dist.all_reduce(torch.ones(5), op=dist.ReduceOp.MAX)
        dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.ones(2), 0)
    items.put(None)
    worker.join()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two ranks with a worker thread, races, collectives, values and phases."""
    folder = tmp_path_factory.mktemp("exported")
    done = record_program(folder, PROGRAM, "--level", "numerics", ranks=2)
    assert done.status == 0, done.stderr
    return open_run(done.run)


def exported(run: Run, path: Path, ranks: list[int] | None = None) -> Path:
    with path.open("w") as sink:
        write_trace(run, sink, ranks)
    return path


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def assert_same(run: Run, again: Run) -> None:
    assert again.threads == run.threads
    assert (again.duration_ns, again.dropped) == (run.duration_ns, run.dropped)
    for name, table in schema.TABLES.items():
        mine, theirs = run.events(name), again.events(name)
        assert mine.schema == theirs.schema
        for column in table.columns:
            left, right = mine[column.name].to_pylist(), theirs[column.name].to_pylist()
            assert str(left) == str(right), (name, column.name)  # NaN is not equal to itself


@pytest.mark.slow
def test_a_recorded_run_comes_back_in_every_column(recorded: Run, tmp_path: Path) -> None:
    again = imported(tmp_path / "again", exported(recorded, tmp_path / "run.json"))
    assert_same(recorded, again)
    filled = {name for name, count in recorded.counts.items() if count}
    assert filled >= {"op", "collective", "phase", "value", "sync", "access", "tensor", "gradient"}
    for key in ("level", "options", "groups", "command", "world_size", "complete", "notes"):
        assert again.manifest[key] == recorded.manifest[key]
    wall = [
        run.origin_ns + run.manifest["axis"]["wall_minus_monotonic_ns"] for run in (recorded, again)
    ]
    assert wall[0] == wall[1]
    assert [str(one) for one in findings(again)] == [str(one) for one in findings(recorded)]
    assert findings(recorded)


def test_a_trace_shows_arguments_arrows_counters_tracks_and_collectives(
    recorded: Run, tmp_path: Path
) -> None:
    events = events_of(exported(recorded, tmp_path / "run.json"))
    ends = Counter((e["cat"], e["ph"]) for e in events if e["ph"] in "sf")
    assert ends["handover", "s"] == ends["handover", "f"] == 2 * 5  # a start and four items a rank
    assert ends["fwdbwd", "s"] == ends["fwdbwd", "f"] > 0
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks >= {"main", "worker"}
    assert {e["name"] for e in events if e["ph"] == "C"} >= {"loss", "gradient norm"}
    calls = [e for e in events if e["ph"] == "b"]
    assert len(calls) == recorded.counts["collective"]
    assert {e["args"].get("reduce op") for e in calls} >= {"max", "sum"}
    linear = next(e for e in events if e["name"] == "aten::addmm")
    assert linear["args"]["module"] == "0"
    assert linear["args"]["Input Dims"]


def test_streams_unfinished_and_overlapping_slices_come_back(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    main = builder.thread()
    stream = builder.thread(ordinal=1, name="stream 7 (cuda:1)", kind="stream", native_id=0)
    builder.op(START_NS, 100, "DistributedDataParallel.forward", thread=main, scope="user")
    builder.op(START_NS + 50, 100, "overlaps", thread=main)
    builder.op(START_NS + 155, None, "never ended", thread=main)
    builder.phase(START_NS + 156, None, "forward")
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
    assert_same(run, imported(tmp_path / "again", exported(run, tmp_path / "run.json")))


def test_ranks_exported_apart_become_one_run(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, steps=3))
    halves = [exported(run, tmp_path / f"{rank}.json", [rank]) for rank in (0, 1)]
    alone = imported(tmp_path / "alone", halves[1])
    assert (alone.ranks, alone.missing_ranks, alone.complete) == ((1,), (0,), False)
    assert_same(run, imported(tmp_path / "both", *halves))


def test_rows_of_many_events_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, steps=3))
    monkeypatch.setattr("lanescope.webapp.exporters.run_tables._BATCH_BYTES", 1000)
    path = exported(run, tmp_path / "run.json")
    assert sum(e["name"] == "lanescope_table" for e in events_of(path)) > len(schema.TABLES)
    assert_same(run, imported(tmp_path / "again", path))


def damaged(path: Path, folder: Path, name: str, **changes: Any) -> Path:
    """The trace with other arguments in the first metadata event of a name."""
    document = json.loads(path.read_text())
    event = next(e for e in document["traceEvents"] if e["name"] == name)
    event["args"].update(changes)
    target = folder / "damaged.json"
    target.write_text(json.dumps(document))
    return target


@pytest.mark.parametrize(
    ("event", "changes", "said"),
    [
        ("lanescope_table", {"table": "nothing"}, "is damaged"),
        ("lanescope_table", {"rank": -1}, "is damaged"),
        ("lanescope_table", {"columns": {"thread": ["a"], "pid": []}}, "is damaged"),
        ("lanescope_table", {"columns": {"thread": {"texts": ["a"], "codes": [3]}}}, "is damaged"),
        ("lanescope_manifest", {"world_size": "two"}, "is damaged"),
        ("lanescope_manifest", {"format": 1 << 20}, "install a newer LaneScope"),
    ],
)
def test_a_damaged_export_is_refused(
    event: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, steps=1))
    path = damaged(exported(run, tmp_path / "run.json"), tmp_path, event, **changes)
    with pytest.raises(ImportRejected, match=said):
        imported(tmp_path / "again", path)
    assert not (tmp_path / "again").exists()


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, steps=1))
    other = open_run(write_run(tmp_path / "other", ranks=1, steps=1))
    paths = [exported(one, tmp_path / f"{n}.json") for n, one in enumerate((run, run, other))]
    with pytest.raises(ImportRejected, match="the same ranks; import it alone"):
        imported(tmp_path / "again", *paths[:2])
    with pytest.raises(ImportRejected, match="holds another run than"):
        imported(tmp_path / "again", paths[0], paths[2])
    with pytest.raises(ImportRejected, match="expected no option beside -o"):
        imported(tmp_path / "again", paths[0], fields=Fields("pid", None))


def test_an_export_that_ends_early_says_so(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=1, steps=3))
    path = exported(run, tmp_path / "run.json")
    text = path.read_text()
    path.write_text(text[: text.index('"table":"value"')])
    again = imported(tmp_path / "again", path)
    assert again.counts["op"] == run.counts["op"]
    assert again.counts["value"] == 0
    assert not again.complete
    assert any("ends early" in note for note in again.warnings)
