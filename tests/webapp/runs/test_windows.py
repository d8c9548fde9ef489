"""Rows of a window: the same as filtering all rows, without reading them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.generate_run import PROBE, generate
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.checks import check
from lanescope.webapp.plugins.threads.overlap import overlap_regions
from lanescope.webapp.runs import table_reader
from lanescope.webapp.runs.parquet_parts import Part
from lanescope.webapp.runs.run import Run, RunError, open_run
from lanescope.webapp.timeline import span_details
from lanescope.webapp.timeline.index import open_index
from lanescope.webapp.timeline.search.lookup import slices_in_window
from lanescope.webapp.timeline.span_links import Place, autograd_partner
from lanescope.webapp.timeline.spans import SPAN_TABLES
from lanescope.webapp.timeline.timeline import Timeline
from tests.support.synthetic import START_NS, Builder, write_run


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """300 000 ops of one thread in three row groups."""
    return open_run(generate(tmp_path_factory.mktemp("large") / "run", 300_000, 1, 1))


class Reads:
    """Row groups that were read since."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(table_reader, "_SMALL_ROWS", 0)  # a small table is read once, as a whole
        self.groups: list[int] = []
        read_row_groups = pq.ParquetFile.read_row_groups

        def counted(file: pq.ParquetFile, groups: list[int], *rest: object, **kw: object) -> object:
            self.groups += groups
            return read_row_groups(file, groups, *rest, **kw)

        patch.setattr(pq.ParquetFile, "read_row_groups", counted)
        patch.setattr(pq.ParquetFile, "read", self._refused)

    def _refused(self, *_: object, **__: object) -> None:
        raise AssertionError("a whole file was read")


def test_pieces_hold_what_events_hold(large: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "_PIECE", 100_000)
    monkeypatch.setattr(table_reader, "_SMALL_ROWS", 0)
    columns = ["start_ns", "duration_ns", "name", "thread", "rank"]
    pieces = list(large.pieces("op", 0, "1000-0", columns))
    assert len(pieces) == 3
    assert (
        pa.concat_tables(pieces)
        .cast(_PLAIN)
        .equals(large.events("op", columns=columns).cast(_PLAIN))
    )
    names = set(large.events("op", columns=["name"])["name"].cast(pa.string()).to_pylist())
    assert texts_of(large, "op", "name") == names
    for table, rank, thread in (("stack", 0, None), ("op", 3, None), ("op", 0, "7-0")):
        with pytest.raises(RunError):
            list(large.pieces(table, rank, thread, ["name"]))


_PLAIN = pa.schema(
    [
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("name", pa.string()),
        ("thread", pa.string()),
        ("rank", pa.int32()),
    ]
)


def test_no_question_about_a_run_needs_a_whole_log(
    large: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    whole = Part._whole

    def counted(part: Part, found: pa.Table, columns: Sequence[str]) -> pa.Table:
        sizes.append(len(found) if part.table == "op" else 0)
        return whole(part, found, columns)

    monkeypatch.setattr(Part, "_whole", counted)
    monkeypatch.setattr(table_reader, "_PIECE", 100_000)
    monkeypatch.setattr(table_reader, "_SMALL_ROWS", 0)
    run = open_run(large.path)
    check(run)
    overlap_regions(run, "/mm/")
    assert 0 < max(sizes) < run.counts["op"] // 2


def test_only_the_row_groups_of_the_window_are_read(
    large: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = large.events("op")
    start = whole["start_ns"].to_numpy()
    end = start + whole["duration_ns"].to_numpy()
    reads = Reads(monkeypatch)
    for low, high in [
        (0, 1),
        (large.duration_ns // 3, large.duration_ns // 3 + 50_000),
        (large.duration_ns - 10, large.duration_ns + 10),
    ]:
        reads.groups.clear()
        found = large.events("op", window=(low, high))
        inside = (start < high) & ((end > low) | (start >= low))
        assert found["start_ns"].to_pylist() == start[inside].tolist()
        assert len(reads.groups) <= 1
        assert abs(large.rows_about("op", (low, high)) - found.num_rows) < 500


def test_one_slice_is_looked_up_in_one_row_group(
    large: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline(large, open_index(large, None))
    whole = large.events("op", columns=["start_ns", "duration_ns", "name", "depth", "self_ns"])
    lane = timeline.index.lanes[0]
    base = timeline.index.row_begin[0]
    flat = np.random.default_rng(1).integers(0, timeline.index.row_end[lane.rows - 1], 12)
    ops = [k for k in flat.tolist() if k >= timeline.index.row_begin[lane.phase_rows]]
    expected = whole.take(timeline.index.arrays["source"][ops]).to_pylist()
    reads = Reads(monkeypatch)
    monkeypatch.setattr(span_details, "autograd_partner", lambda *_: None)
    monkeypatch.setattr(span_details, "_handovers", lambda *_: [])
    for k, row in zip(ops, expected, strict=True):
        reads.groups.clear()
        facts = span_details.slice_facts(timeline, lane.id, k - base)
        assert {name: facts[name] for name in ("name", "depth")} == {
            name: row[name] for name in ("name", "depth")
        }
        times = ("start_ns", "duration_ns", "self_ns")
        assert [facts[name] for name in times] == [str(row[name]) for name in times]
        assert len(reads.groups) <= 2
    assert SPAN_TABLES[timeline.index.arrays["row_table"][lane.phase_rows]] == "op"


def test_a_partner_is_looked_up_in_the_row_groups_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All forward, then all backward, in three row groups: the first and the last have the early
    # sequence numbers, the one between them the late ones.
    half = 140_000
    builder = Builder(tmp_path / "run")
    builder.rows(
        "op",
        0,
        "1000-0",
        start_ns=START_NS + np.arange(2 * half, dtype=np.int64) * 100,
        duration_ns=60,
        name=["aten::mul"] * half + ["MulBackward0"] * half,
        scope=["function"] * half + ["backward"] * half,
        sequence=[*range(half), *range(half - 1, -1, -1)],
    )
    run = open_run(builder.write())
    timeline = Timeline(run, open_index(run, None))
    columns = ["sequence", "scope", "name", "start_ns", "duration_ns", "thread"]
    ops = run.events("op", columns=columns)
    reads = Reads(monkeypatch)
    for at, groups in ((5, [0, 2]), (2 * half - 6, [0, 2]), (half - 1, [1]), (half, [1])):
        reads.groups.clear()
        place = autograd_partner(timeline, 0, ops.slice(at, 1).to_pylist()[0])
        start = (2 * half - 1 - at) * 100
        assert place == Place(0, 0, 2 * half - 1 - at, start, start + 60)
        assert reads.groups == groups
    assert autograd_partner(timeline, 0, {"sequence": half, "scope": "function"}) is None
    with pytest.raises(RunError, match="cannot be chosen by name"):
        run.events("op", equal=("name", 1))


def test_twins_are_distinguished(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run")
    builder.thread()
    for depth in range(3):
        builder.op(START_NS, 0, "aten::view", depth=depth, module=f"level{depth}")
    builder.op(START_NS, 0, "aten::view", depth=1, module="again")
    builder.op(START_NS + 5, None, "aten::mm", module="stuck")
    run = open_run(builder.write())
    timeline = Timeline(run, open_index(run, None))
    (lane,) = timeline.index.lanes
    size = timeline.index.row_end[lane.rows - 1]
    modules = [span_details.slice_facts(timeline, 0, ref)["module"] for ref in range(size)]
    assert sorted(modules) == ["again", "level0", "level1", "level2", "stuck"]


def test_windows_follow_each_process_s_clock(tmp_path: Path) -> None:
    builder = Builder(tmp_path / "run", world_size=2)
    builder.process(0)
    builder.process(1, clock={"offset_ns": -7_000_000, "drift_ppb": 50_000.0})
    for rank in (0, 1):
        start = START_NS + np.arange(1000, dtype=np.int64) * 1_000_000 + rank * 7_000_000
        thread = f"{1000 + rank}-0"
        builder.rows("op", rank, thread, start_ns=start, duration_ns=900_000, name="aten::mm")
    run = open_run(builder.write())
    whole = run.events("op", columns=["rank", "start_ns", "duration_ns"]).to_pylist()
    for t in (0, 1, 499_950_000, 500_000_000, run.duration_ns - 1):
        window = (t, t + 1_000_000)
        found = run.events("op", columns=["rank", "start_ns", "duration_ns"], window=window)
        assert found.to_pylist() == [
            row
            for row in whole
            if row["start_ns"] < window[1] and row["start_ns"] + row["duration_ns"] > window[0]
        ]


def test_rows_of_small_tables_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=40)
    kept, read = open_run(path), open_run(path)
    middle = (kept.duration_ns // 3, kept.duration_ns // 2)
    thread = kept.threads[0].thread
    asked: list[tuple[Any, ...]] = [
        ("op", None, None, ["name"], None, None),
        ("op", 1, None, ["duration_ns", "thread", "depth"], middle, None),
        ("op", 0, thread, ["start_ns", "name", "self_ns"], None, None),
        ("op", 0, thread, None, middle, None),
        ("op", None, None, ["sequence", "rank"], None, ("sequence", 3)),
        ("gradient", 0, None, ["norm", "parameter"], None, None),
    ]
    found = [kept.events(*one) for one in asked]
    monkeypatch.setattr(table_reader, "_SMALL_ROWS", 0)
    for one, table in zip(asked, found, strict=True):
        assert table.equals(read.events(*one), check_metadata=True)
    assert all(table.num_rows for table in (found[0], found[1], found[2], found[5]))


def test_tables_without_extent_have_no_windows(large: Run) -> None:
    with pytest.raises(RunError, match="gradient have no extent"):
        large.events("gradient", window=(0, 1))


def test_one_nanosecond_among_all_others_is_found(large: Run) -> None:
    timeline = Timeline(large, open_index(large, None))
    lane = timeline.index.lanes[0]
    found = slices_in_window(timeline, lane.id, lane.rows - 1, (0, large.duration_ns))
    assert (found["name"], found["end_ns"] - found["start_ns"]) == (PROBE, 1)
    assert (found["count"], found["covered_ns"]) == (1, 1)
    missed = slices_in_window(timeline, lane.id, lane.rows - 1, (0, found["start_ns"]))
    assert missed["ref"] is None


def test_rows_are_counted_per_thread(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", ranks=2, threads=2, steps=3, ops=40))
    window = (0, run.duration_ns)
    counts = [run.rows.within("op", [one.rank], window, one.thread) for one in run.threads]
    held = [run.events("op", one.rank, one.thread, ["rank"]).num_rows for one in run.threads]
    assert counts == held
    assert sum(counts) == run.rows_about("op", window)
